"""Reading a model's tokenizer files, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from router.request.encoders.encoder import TokenizerError


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty when the file is not there.

    Raises:
        TokenizerError: When it is broken or holds something else.
    """
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file} can't be read ({error}): copy it again from the model") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{file} is no JSON object: copy it again from the model")
    return value


def read_text(file: Path) -> str:
    """Return a text file.

    Raises:
        TokenizerError: When it can't be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"chat template {file} can't be read: {error}") from None
