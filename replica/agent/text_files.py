"""Reads the files of a model's folder that routers need to read prompts as its engine does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.kv.registration import RegisteredModel
from router.kv.text_files import (
    ENGINE_TEMPLATE,
    ENGINE_VARIABLES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_TOGETHER_BYTES,
    TEMPLATES_FOLDER,
    digest_of,
    has_tokenizer,
    is_needed,
)


class TextFilesError(Exception):
    """The files can't be published; `str(error)` says why, in words for an operator."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file as it was read last; its bytes are not kept.

    Attributes:
        path: Where it lies; None for what lies nowhere.
        digest: SHA-256 of its content, in hex.
        data: Its content, where it lies nowhere.
    """

    path: Path | None
    digest: str
    data: bytes = b""

    def read(self) -> bytes:
        """Return its bytes as they are now. Raises OSError or TextFilesError."""
        return self.data if self.path is None else read_file(self.path)


def folder_of(models: Sequence[RegisteredModel]) -> Path | None:
    """Return the folder that the engine loaded its model from, where it holds a tokenizer here; None otherwise.

    Only a whole path counts: a hub's `OWNER/NAME` would be a folder below wherever the agent happens to run.
    """
    root = next((Path(model.root) for model in models if model.parent is None and "\0" not in model.root), None)
    if root is None or not root.is_absolute():
        return None
    try:
        return root if root.is_dir() and has_tokenizer(_paths(root)) else None
    except OSError:
        return None


def read(folder: Path, template: Path | None, variables: Mapping[str, Any] | None = None) -> dict[str, TextFile]:
    """Return the files by the names that routers know them by.

    Args:
        folder: The model's.
        template: The engine's own `--chat-template`.
        variables: Its `--default-chat-template-kwargs`.

    Raises:
        TextFilesError: One can't be read or is too large, or there is no tokenizer among them.
    """
    try:
        paths = _paths(folder)
        if not has_tokenizer(paths):
            raise TextFilesError(f"{folder} has no tokenizer that routers can read")
        if template is not None:
            paths[ENGINE_TEMPLATE] = template
        if len(paths) > MAX_FILES:
            raise TextFilesError(f"{folder} has more than {MAX_FILES} files for it")
        together, found = 0, {}
        for name, path in sorted(paths.items()):
            data = read_file(path)
            together += len(data)
            if together > MAX_TOGETHER_BYTES:
                raise TextFilesError(f"the tokenizer's files in {folder} have more than {MAX_TOGETHER_BYTES} bytes")
            found[name] = TextFile(path, digest_of(data))
        if variables:
            data = json.dumps(variables, sort_keys=True).encode()
            found[ENGINE_VARIABLES] = TextFile(None, digest_of(data), data)
    except OSError as error:
        raise TextFilesError(f"{error.filename or folder} can't be read: {error.strerror}") from error
    return found


def read_file(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        OSError: It can't be read.
        TextFilesError: It is too large.
    """
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise TextFilesError(f"{path} has more than {MAX_FILE_BYTES} bytes")
    return data


def _paths(folder: Path) -> dict[str, Path]:
    found = list(folder.iterdir())
    if (folder / TEMPLATES_FOLDER).is_dir():
        found += (folder / TEMPLATES_FOLDER).iterdir()
    named = {path.relative_to(folder).as_posix(): path for path in found}
    return {name: path for name, path in named.items() if is_needed(name) and path.is_file()}
