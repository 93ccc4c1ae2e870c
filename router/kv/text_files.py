"""Which of a model's files a router needs to read its prompts, and how they are named in Redis. Pure.

An agent publishes them for routers that have no tokenizer of the model: each file once under its SHA-256, their names
with these in the signed registration. So a file's bytes need no signature of their own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

ENGINE_TEMPLATE = "engine_chat_template.jinja"
"""Name under which the engine's own `--chat-template` is listed; in no folder."""
ENGINE_VARIABLES = "engine_chat_template_kwargs.json"
"""Name of a JSON object in no folder: the engine's `--default-chat-template-kwargs`."""
FROM_ENGINE = frozenset({ENGINE_TEMPLATE, ENGINE_VARIABLES})
MAX_FILE_BYTES = 64 * 2**20
MAX_TOGETHER_BYTES = 128 * 2**20
MAX_FILES = 64
TEMPLATES_FOLDER = "additional_chat_templates"
_TOKENIZER = re.compile(
    r"tokenizer\.json|[\w.-]{1,200}\.tiktoken|tekken(_\d+)?\.json|[\w.-]{0,200}\.model\.v\d+(m\d+)?"
)
# config.json tells which models' chats the engine encodes by code of its own.
_BESIDE = re.compile(
    r"tokenizer_config\.json|special_tokens_map\.json|config\.json|chat_template\.(jinja|json)"
    rf"|{TEMPLATES_FOLDER}/[A-Za-z0-9][\w.-]{{0,200}}\.jinja"
)


def is_needed(name: str) -> bool:
    """Tell whether a file, named by its path below the model's folder, is one that a router reads."""
    return _TOKENIZER.fullmatch(name) is not None or _BESIDE.fullmatch(name) is not None


def has_tokenizer(names: Iterable[str]) -> bool:
    """Tell whether a tokenizer is among the files; the others are of no use without."""
    return any(_TOKENIZER.fullmatch(name) for name in names)


def digest_of(data: bytes) -> str:
    """Return the name of a file's content: its SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def set_digest(files: Mapping[str, str]) -> str:
    """Return one name for a set of files, given as file name to digest."""
    return digest_of("".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items())).encode())
