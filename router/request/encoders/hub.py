"""Tokenizer files by their model's name on the Hugging Face hub, through huggingface_hub's own cache."""

from __future__ import annotations

import re
from pathlib import Path

from router.request.encoders.encoder import TokenizerError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ("*.json", "*.jinja", "*.tiktoken", "*.model.v*", "additional_chat_templates/*")
_WEIGHTS = ("*.safetensors.index.json", "*.bin.index.json")


def local_path(tokenizer: Path, revision: str | None = None) -> Path:
    """Return where a tokenizer's files are, having fetched them when they are named by OWNER/NAME.

    A path that exists is that path. What is in the cache is not fetched again; with `HF_HUB_OFFLINE=1` nothing is.

    Args:
        tokenizer: A path, or OWNER/NAME.
        revision: A commit, tag or branch of OWNER/NAME; None is `main`.

    Raises:
        TokenizerError: It can't be fetched, or the package is missing.
    """
    name = tokenizer.as_posix()
    if tokenizer.exists() or not _NAME.fullmatch(name):
        return tokenizer
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise TokenizerError(
            f"{name} is no folder, and to take it from the hub needs the package huggingface_hub"
        ) from None
    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=list(_FILES), ignore_patterns=list(_WEIGHTS))
        )
    except Exception as error:  # the package and its HTTP client raise many kinds
        at = f" at {revision}" if revision else ""
        line = " ".join(str(error).split())[:200]
        raise TokenizerError(f"{name}{at} is no folder here and can't be taken from the hub: {line}") from None
