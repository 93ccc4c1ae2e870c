"""Reads options out of an engine's command line, as vLLM's parser takes them. Pure.

`--name VALUE` and `--name=VALUE`, with dashes or underscores; the last one holds. What takes JSON may be given key by
key too, and then these hold alone: `--name.key VALUE`, `--name.key+ A,B` for a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

_SETTING = re.compile(r"^([A-Za-z][\w-]*)[ \t]*:(.*)$", re.M)
_SUFFIXED = re.compile(r"\d+(\.\d+)?[kKmMgGtT]")  # a number to vLLM: 1k, 80G


def text_option(command: Sequence[str], name: str) -> str | None:
    """Return an option's value; None where the command does not have it.

    Args:
        command: The words.
        name: As `--chat-template`.
    """
    return next((value for key, value in reversed(list(_options(command))) if key == name), None)


def json_option(command: Sequence[str], name: str) -> dict[str, Any] | None:
    """Return the value of an option that takes a JSON object; None where the command does not have it.

    Raises:
        ValueError: It is no JSON object, or not to be told from here.
    """
    by_key: dict[str, Any] = {}
    for key, value in _options(command):
        if key.startswith(f"{name}."):
            _put(by_key, key.removeprefix(f"{name}.").split("."), value)
    if by_key:
        return by_key
    whole = text_option(command, name)
    if whole is None:
        return None
    result = json.loads(whole)
    if not isinstance(result, dict):
        raise ValueError(f"{name} takes a JSON object")
    return result


def has_option(command: Sequence[str], *names: str) -> bool:
    """Tell whether a command has any of these options, whole or key by key."""
    return any(key == name or key.startswith(f"{name}.") for key in _keys(command) for name in names)


def int_option(command: Sequence[str], *names: str) -> int | None:
    """Return the number that an option has, of several names (one may be short, as `-dp`); None where it has none."""
    found = None
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if (name.replace("_", "-") if name.startswith("--") else name) not in names:
            continue
        text = value if equals else command[place + 1] if place + 1 < len(command) else ""
        found = int(text) if text.isascii() and text.isdigit() else None
    return found


def config_words(text: str) -> list[str]:
    """Return what an engine's configuration file (`--config`, YAML) sets, as words of a command: its own keys alone."""
    return [f"--{key}={value.strip()}" for key, value in _SETTING.findall(text)]


def _keys(command: Sequence[str]) -> Iterator[str]:
    for word in command:
        if word.startswith("--"):
            stem, dot, keys = word.partition("=")[0].partition(".")
            yield stem.replace("_", "-") + dot + keys


def _options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, word in enumerate(command):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        stem, dot, keys = name.partition(".")
        spelled = stem.replace("_", "-") + dot + keys
        if equals:
            yield spelled, value
        elif place + 1 < len(command):
            yield spelled, command[place + 1]


def _put(into: dict[str, Any], path: list[str], text: str) -> None:
    *above, last = path
    for key in above:
        below = into.setdefault(key, {})
        if not isinstance(below, dict):
            below = into[key] = {}
        into = below
    if last.endswith("+"):
        items = into.setdefault(last[:-1], [])
        into[last[:-1]] = (items if isinstance(items, list) else []) + text.split(",")
        return
    into[last] = _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if _SUFFIXED.fullmatch(text):
            raise ValueError(f"{text} is a number by vLLM's own rules; write it out") from None
        return text
