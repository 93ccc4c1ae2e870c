"""Requests as `--traffic` looks at them: from a router's traces, or from the user's own file of bodies."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.errors import ConfigurationError, Problem
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.table import load
from router.request.reader import PromptReader
from router.request.reasons import NotUnderstoodError
from router.request.text import Text
from router.telemetry.traces import Tracer
from router.tools.doctor_http import Server

TRACES_TIMEOUT_S = 30.0
MAX_LINES = 100_000
CHAT_PATH = "/v1/chat/completions"


@dataclass(slots=True)
class Request:
    """One request, oldest first in a list of them.

    Attributes:
        name: Request id, or the line of the file.
        model: As the body names it.
        tokens: Length of the prompt; an estimate where `reason` is set.
        reason: Why its tokens are not known; None when they are.
        block_size: Tokens a block.
        blocks: Hashes of its first blocks.
        steps: See `Tracer.trace`; empty where `ids` are there.
        ids: Its token ids, where the user's own file gave them.
        passages: Hash of a run of tokens to its position.
        text: Its rendered text, likewise.
        body: Its body, likewise.
        salt: Tells salts apart; None without one.
        reads_cache: False when it asks for logprobs of its prompt.
        unit: Where it went; empty where unknown.
        cached_tokens: What the engine delivered, or None.
        completion_tokens: Length of the answer, or None.
    """

    name: str
    model: str | None
    tokens: int
    reason: str | None = None
    block_size: int = 16
    blocks: Sequence[int] = ()
    steps: bytes = b""
    ids: Sequence[int] | None = None
    passages: dict[int, int] = field(default_factory=dict)
    text: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    salt: str | None = None
    reads_cache: bool = True
    unit: str = ""
    cached_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def most_hit_tokens(self) -> int:
        """What a cache can serve of it at most."""
        return max(0, self.tokens - 1) // self.block_size * self.block_size if self.reads_cache else 0


def common_tokens(one: Request, other: Request) -> int:
    """Return how many leading tokens two requests share: exactly where ids or steps tell, else in whole blocks."""
    if one.ids is not None and other.ids is not None:
        return _common(one.ids, other.ids)
    blocks = _common(one.blocks, other.blocks)
    # Within the reach of steps the difference is exact; beyond it only the last common block is known.
    return max(blocks * one.block_size, _common(one.steps, other.steps))


def from_router(server: Server, limit: int) -> list[Request]:
    """Return a router's last requests, oldest first.

    Raises:
        ConfigurationError: It can't be asked, or keeps no traces.
    """
    answer = server.get(f"/admin/decisions?traces=1&limit={limit}", TRACES_TIMEOUT_S)
    if not answer.ok:
        raise ConfigurationError([Problem("--router", f"/admin/decisions {answer.why()}")])
    decisions = answer.object().get("decisions") or []
    requests = [of_decision(decision) for decision in reversed(decisions)]
    if requests and not any(request.blocks or request.steps for request in requests):
        problem = Problem(
            "--traffic",
            "the router keeps no traces of its requests",
            "set `admin: {traces: true}` in its configuration and restart it, or give --bodies FILE",
        )
        raise ConfigurationError([problem])
    return requests


def from_bodies(path: Path, tokenizer: Path | None, chat_template: Path | None, block_size: int) -> list[Request]:
    """Return the requests of a file, in its order: on each line an OpenAI body, or `{"url": PATH, "body": {...}}`.

    Raises:
        ConfigurationError: The file or the tokenizer can't be used.
    """
    problems: list[Problem] = []
    lines: list[str] = []
    text: Text | None = None
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()][:MAX_LINES]
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem("--bodies", f"can't read {path}: {error}"))
    if tokenizer is None:
        problems.append(Problem("--tokenizer", "is needed for --bodies", "give the folder that holds tokenizer.json"))
    else:
        try:
            text = load(tokenizer, chat_template)
        except TokenizerError as error:
            problems.append(Problem("--tokenizer", str(error)))
    bodies = [_body(number, line, problems) for number, line in enumerate(lines, 1)]
    if problems or text is None:
        raise ConfigurationError(problems)
    scheme, tracer = Scheme(HashAlgorithm.SHA256_CBOR, block_size), Tracer()
    return [_of_body(number, *found, text, scheme, tracer) for number, found in enumerate(bodies, 1)]


def of_decision(decision: dict[str, Any]) -> Request:
    """Return what a row of `/admin/decisions?traces=1` tells of a request."""
    outcome = decision.get("outcome") or {}
    trace = decision.get("trace") or {}
    return Request(
        name=str(decision.get("request_id")),
        model=decision.get("model"),
        tokens=int(decision.get("prompt_tokens") or 0),
        reason=decision.get("prompt_reason"),
        block_size=int(trace.get("block_size") or 16),
        blocks=_numbers(trace.get("blocks", "")),
        steps=base64.b64decode(trace.get("steps", "")),
        passages={value: place for place, value in trace.get("passages", [])},
        salt=trace.get("salt"),
        reads_cache=bool(trace.get("reads_cache", True)),
        unit=str(decision.get("winner") or ""),
        cached_tokens=outcome.get("cached_tokens"),
        completion_tokens=outcome.get("completion_tokens"),
    )


def _of_body(number: int, url: str, body: dict[str, Any], text: Text, scheme: Scheme, tracer: Tracer) -> Request:
    prompt = PromptReader(lambda _: text).read(url, json.dumps(body).encode())
    request = Request(f"line {number}", prompt.model, prompt.tokens, block_size=scheme.block_size, body=body)
    request.salt, request.reads_cache = prompt.salt, prompt.reads_cache
    if prompt.token_ids is None:
        request.reason = prompt.reason.value if prompt.reason is not None else "internal"
        return request
    request.ids, request.blocks = prompt.token_ids, prompt.chain(scheme, None)
    request.passages = {value: place for place, value in tracer.passages(prompt.token_ids)}
    request.text = _rendered(url, body, text)
    return request


def _rendered(url: str, body: dict[str, Any], text: Text) -> str:
    if url == CHAT_PATH:
        try:
            return text.render_chat(body)
        except NotUnderstoodError:
            return ""
    given = body.get("prompt")
    return given if isinstance(given, str) else ""


def _body(number: int, line: str, problems: list[Problem]) -> tuple[str, dict[str, Any]]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        problems.append(Problem("--bodies", f"line {number} is no JSON object"))
        return "", {}
    body, url = value.get("body"), value.get("url") or value.get("path")
    if not isinstance(body, dict):
        body, url = value, None
    chat = "messages" in body
    return url if isinstance(url, str) else CHAT_PATH if chat else "/v1/completions", body


def _numbers(text: str) -> Sequence[int]:
    numbers = array("Q", base64.b64decode(text))
    numbers.byteswap()
    return numbers


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most  # equal up to low, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
