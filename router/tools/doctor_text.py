"""Texts that are rendered and tokenised on both sides: here (or by the router) and by the replica's own `/tokenize`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from router.request.encoders.encoder import TokenizerError
from router.request.encoders.table import load
from router.request.reader import PromptReader
from router.tools.doctor_http import Server

AROUND_TOKENS = 8
_MARKS = {"\u0120": " ", "\u010a": "\n", "\u0109": "\t", "\u2581": " "}
"""How vocabularies spell white space: byte-level ones its three kinds, SentencePiece the space."""
_UNICODE = "Naïve façade — 東京タワー, привет 👩‍🚀\u00a0e\u0301!\n\tif x >= 10:\n\t\treturn  [1,2]  # done"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Kraków"}'}}
_CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that is rendered on both sides; `fields` are an OpenAI body without its model."""

    name: str
    path: str
    fields: dict[str, Any]


PROBES: tuple[Probe, ...] = (
    Probe("prompt", "/v1/completions", {"prompt": _UNICODE}),
    Probe("chat", _CHAT, {"messages": [{"role": "user", "content": _UNICODE}]}),
    Probe(
        "chat with a system message",
        _CHAT,
        {
            "messages": [
                {"role": "system", "content": "You are the assistant of a library. Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Where are"}, {"type": "text", "text": "maps?"}]},
                {"role": "assistant", "content": "On the second floor."},
                {"role": "user", "content": "Thank you!"},
            ]
        },
    ),
    Probe(
        "chat with tools",
        _CHAT,
        {
            "messages": [
                {"role": "system", "content": "Answer with the tools."},
                {"role": "user", "content": "Weather in Kraków?"},
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": '{"degrees": 21}'},
                {"role": "user", "content": "And tomorrow?"},
            ],
            "tools": [_TOOL],
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Ids:
    """One side's token ids, or why there are none.

    Attributes:
        words: Each id's own spelling in the vocabulary, where this side tells it.
    """

    ids: list[int] | None
    reason: str = ""
    words: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Sides:
    """A probe on both sides.

    Attributes:
        at: The first token that differs, from 0; None where all are equal or a side has none.
        around_ours: Our text around it, where it could be had.
        around_theirs: The engine's.
    """

    probe: Probe
    ours: Ids
    theirs: Ids
    at: int | None = None
    around_ours: str = ""
    around_theirs: str = ""


Renderer = Callable[[str, Probe], Ids]
"""From a model's name and a probe to our token ids."""


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Return the first place where two sequences differ, or None when they are equal."""
    for place, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left != right:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def compare(server: Server, model: str, probe: Probe, ours: Renderer) -> Sides:
    """Render a probe on both sides and look for the first difference."""
    here = ours(model, probe)
    answer = server.post("/tokenize", {"model": model, **probe.fields, "return_token_strs": True})
    tokens, words = answer.object().get("tokens"), answer.object().get("token_strs")
    if isinstance(tokens, list):
        there = Ids(tokens, words=words if isinstance(words, list) else None)
    else:
        there = Ids(None, answer.why() if not answer.ok else "gave no tokens")
    if here.ids is None or there.ids is None:
        return Sides(probe, here, there)
    at = first_difference(here.ids, there.ids)
    if at is None:
        return Sides(probe, here, there)
    return Sides(
        probe,
        here,
        there,
        at,
        _text(server, model, here, at, there),
        _text(server, model, there, at, there),
    )


def local_renderer(folder: Path, chat_template: Path | None) -> Renderer:
    """Return a renderer with the tokenizer of a folder.

    Raises:
        TokenizerError: It can't be loaded.
    """
    text = load(folder, chat_template)
    file = folder / "tokenizer.json"
    vocabulary = Tokenizer.from_file(str(file)) if file.is_file() else None
    reader = PromptReader(lambda _: text)

    def render(model: str, probe: Probe) -> Ids:
        prompt = reader.read(probe.path, json.dumps({"model": model, **probe.fields}).encode())
        words = None
        if vocabulary is not None and prompt.token_ids is not None:
            words = [vocabulary.id_to_token(token) or "" for token in prompt.token_ids]
        return Ids(
            [*prompt.token_ids] if prompt.token_ids is not None else None,
            prompt.reason.value if prompt.reason else "",
            words,
        )

    return render


def router_renderer(admin: Server) -> Renderer:
    """Return a renderer that asks the router itself what it makes of a request."""

    def render(model: str, probe: Probe) -> Ids:
        answer = admin.post(f"/admin/explain?tokens=1&path={probe.path}", {"model": model, **probe.fields})
        if not answer.ok:
            return Ids(None, answer.why())
        decision = answer.object()
        ids = decision.get("token_ids")
        return Ids(ids if isinstance(ids, list) else None, str(decision.get("prompt_reason") or "gave no token ids"))

    return render


def without_renderer(reason: str) -> Renderer:
    """Return a renderer that has nothing to render with."""
    return lambda model, probe: Ids(None, reason)


def _text(server: Server, model: str, side: Ids, at: int, engine: Ids) -> str:
    """Return a side's text around a place, special tokens included."""
    cut = slice(max(0, at - AROUND_TOKENS), at + AROUND_TOKENS)
    ids = (side.ids or [])[cut]
    if side.words is not None:
        words = side.words[cut]
    else:
        # A router tells ids alone: they are read with the engine's vocabulary, and shown beside the text.
        known = dict(zip(engine.ids or (), engine.words or (), strict=False))
        words = [known[token] if token in known else _word(server, model, token) for token in ids]
    text = "".join(words)
    for mark, meaning in _MARKS.items():
        text = text.replace(mark, meaning)
    return text


def _word(server: Server, model: str, token: int) -> str:
    text = server.post("/detokenize", {"model": model, "tokens": [token]}).object().get("prompt")
    return text if isinstance(text, str) and text else f"<{token}>"


__all__ = [
    "PROBES",
    "Ids",
    "Probe",
    "Renderer",
    "Sides",
    "TokenizerError",
    "compare",
    "first_difference",
    "local_renderer",
    "router_renderer",
    "without_renderer",
]
