"""Reads what an engine serves out of its /v1/models. Pure."""

from __future__ import annotations

import json
from typing import Any

from router.kv.registration import RegisteredModel

MAX_MODELS = 4_096
MAX_NAME_CHARACTERS, MAX_ROOT_CHARACTERS = 1_024, 4_096


def parse_models(body: bytes) -> tuple[RegisteredModel, ...] | None:
    """Return the models and adapters that are listed, at most `MAX_MODELS`; None when it is no list of models.

    An entry without a usable name is left out.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        return None
    return tuple(model for entry in entries[:MAX_MODELS] if (model := _model(entry)) is not None)


def _model(entry: Any) -> RegisteredModel | None:
    if not isinstance(entry, dict):
        return None
    name, root, parent, length = (entry.get(key) for key in ("id", "root", "parent", "max_model_len"))
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        return None
    return RegisteredModel(
        name=name,
        root=root if isinstance(root, str) and len(root) <= MAX_ROOT_CHARACTERS else name,
        parent=parent if isinstance(parent, str) and 0 < len(parent) <= MAX_NAME_CHARACTERS else None,
        max_model_len=length if type(length) is int and 0 <= length < 2**62 else None,
    )
