"""Other names for models: aliases, and names that stand for several models by weight.

Which model a request is for has to be in its body under the name that the engine knows, so the value of `model` is
written anew, and not a byte beside it. A conversation stays with the model that it began with: its cached prefix is
there. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
import xxhash

from router.request.auth.top_level import spelled_values
from router.request.bodies import parse
from router.request.reasons import NotUnderstoodError

KEY_CHARACTERS = 2_048
"""Of a prompt's beginning that tell conversations apart."""
KEY_IDS = 256
_BOUNDARY = re.compile(rb'multipart/form-data\s*;.*?boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.I | re.S)
_MODEL_PART = re.compile(rb'content-disposition:[^\r\n]*[;\s]name="?model"?\s*(?:;|$)', re.I | re.M)


class ModelNames:
    """What the configuration makes of names.

    Args:
        aliases: From another name to the model that is meant.
        splits: From a name to models and their weights, each above 0.
        replicas: The names that each replica serves; none for one that did not tell yet.
    """

    def __init__(
        self,
        aliases: Mapping[str, str],
        splits: Mapping[str, Sequence[tuple[str, float]]],
        replicas: Callable[[], Iterable[Iterable[str]]],
    ) -> None:
        self._aliases = aliases
        self._splits = splits
        self._replicas = replicas
        names = sorted({*aliases, *splits}, key=len, reverse=True)
        # Spelled with escapes or in UTF-16, a name is found by reading the body.
        spelled = [re.escape(name.encode()) for name in names]
        self._may_hold = re.compile(b"|".join([*spelled, rb"\\u", b"\0"])) if names else None

    def __bool__(self) -> bool:
        return self._may_hold is not None

    def meanings(self) -> dict[str, list[str]]:
        """Return the models that each other name stands for."""
        splits = {name: [target for target, _ in targets] for name, targets in self._splits.items()}
        return {alias: [model] for alias, model in self._aliases.items()} | splits

    def renamed(self, body: bytes, content_type: bytes = b"") -> bytes:
        """Return a body with the model's own name in it; the body itself where it names no other."""
        if self._may_hold is None or not self._may_hold.search(body):
            return body
        multipart = _BOUNDARY.match(content_type)
        if multipart is not None:
            return self._renamed_form(body, multipart[1] or multipart[2])
        try:
            data = parse(body)
        except NotUnderstoodError:
            return body
        name = data.get("model")
        target = self.model_for(name, lambda: conversation_key(data)) if isinstance(name, str) else None
        if target is None or not isinstance(name, str):
            return body
        found = [span for key, span in spelled_values(body) if key == b'"model"' or _is_model(key)]
        if not found or not _spells(body[slice(*found[-1])], name):
            return body  # not UTF-8: no engine's answer is worse than a body that was guessed at
        begin, end = found[-1]  # of equal keys the last one holds
        return b"".join((body[:begin], json.dumps(target, ensure_ascii=False).encode(), body[end:]))

    def model_for(self, name: str, key: Callable[[], bytes]) -> str | None:
        """Return the model that a name stands for; None where it stands for itself.

        Args:
            key: What tells one conversation from another.
        """
        targets = self._splits.get(name)
        if targets is not None:
            served = {each for names in self._replicas() for each in names}
            able = [target for target in targets if target[0] in served] or targets
            return _heaviest(able, key())
        model = self._aliases.get(name)
        if model is None:
            return None
        serving = [names for names in map(set, self._replicas()) if model in names or name in names]
        # Engines that were started with the alias themselves (--served-model-name) get the request as it came.
        return None if serving and all(name in names for names in serving) else model

    def _renamed_form(self, body: bytes, boundary: bytes) -> bytes:
        mark = b"--" + boundary
        at = body.find(mark)
        while at >= 0:
            begin = body.find(b"\r\n\r\n", at)
            end = body.find(b"\r\n" + mark, at + len(mark))
            if begin < 0 or end < 0:
                return body
            if begin < end and _MODEL_PART.search(body, at, begin):
                name = body[begin + 4 : end].decode("utf-8", "replace")
                target = self.model_for(name, lambda: body)
                return body if target is None else b"".join((body[: begin + 4], target.encode(), body[end:]))
            at = end + 2
        return body


def conversation_key(data: Mapping[str, Any]) -> bytes:
    """Return what all requests of a conversation begin with: what the system says and the first thing a user says."""
    for field in ("messages", "input", "prompt", "query", "text_1"):
        value = data.get(field)
        if isinstance(value, str):
            return value[:KEY_CHARACTERS].encode("utf-8", "replace")
        if isinstance(value, list) and value:
            begin = [data.get("system"), *_to_first_user(value)]
            return orjson.dumps(begin, option=orjson.OPT_SORT_KEYS)[: 4 * KEY_CHARACTERS]
    return orjson.dumps({name: value for name, value in data.items() if name != "model"}, option=orjson.OPT_SORT_KEYS)


def conversation_name(data: Mapping[str, Any]) -> bytes:
    """Return a digest that all requests of a conversation have in common, and hardly any others.

    Of its `prompt_cache_key`, which clients send for this, else of how it begins.
    """
    key = data.get("prompt_cache_key")
    named = isinstance(key, str) and key
    name = b"key " + str(key).encode("utf-8", "replace") if named else b"begin " + conversation_key(data)
    return xxhash.xxh3_128_digest(name)


def _to_first_user(items: list[Any]) -> list[Any]:
    if not isinstance(items[0], dict):
        return items[:KEY_IDS]
    for place, item in enumerate(items):
        if isinstance(item, dict) and item.get("role") == "user":
            return items[: place + 1]
    return items[:1]


def _heaviest(targets: Sequence[tuple[str, float]], key: bytes) -> str:
    """Choose by weighted rendezvous hashing: a changed weight moves no more conversations than it must."""

    def draw(target: tuple[str, float]) -> float:
        name, weight = target
        digest = xxhash.xxh64_intdigest(name.encode() + b"\0" + key)
        return -math.log((digest + 1) / 2**64) / weight

    return min(targets, key=draw)[0]


def _is_model(key: bytes) -> bool:
    return b"\\" in key and _spells(key, "model")


def _spells(text: bytes, value: str) -> bool:
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False
