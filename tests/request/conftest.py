"""Tokenizer folders for the tests of router.request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.request.encoders.table import load
from router.request.model_text import ModelText


@pytest.fixture(scope="session")
def tiny(golden: Path) -> ModelText:
    """The recorded engine's tokenizer and template."""
    return load(golden / "tokenizer")


@pytest.fixture
def make_folder(tmp_path: Path, golden: Path) -> Callable[..., Path]:
    """`make_folder(tokenizer={...}, config={...}, files={name: text})`: a copy of the tokenizer folder, changed.

    `tokenizer` and `config` override keys of `tokenizer.json` and `tokenizer_config.json`; the chat template is only
    there when `files` brings one.
    """

    def make(
        tokenizer: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        files: dict[str, str] | None = None,
    ) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(golden / "tokenizer", folder, copy_function=shutil.copyfile)
        (folder / "chat_template.jinja").unlink()
        for name, changes in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            data = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(data | (changes or {})))
        for name, text in (files or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        return folder

    return make
