"""Requests of a recorded trace, in Mooncake's format: one JSON object a line.

    {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}

`timestamp` is in milliseconds, lengths are tokens, and `hash_ids` names the prompt's blocks (512 tokens each there):
equal leading names are a shared prefix. What a router recorded (`record`) says `block_tokens` in each line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from router.errors import ConfigurationError, Problem

MAX_PROBLEMS = 10
"""Bad lines that are listed; a file of another format would fill the screen."""
BLOCK_TOKENS = 512
"""Of Mooncake's own traces."""
FIELDS = {"timestamp": 0, "input_length": 1, "output_length": 0}
"""Numbers that a line must have, with the least that they may be."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line.

    Attributes:
        at_s: Seconds after the trace's zero.
        prompt_tokens: 1 or more.
        answer_tokens: 1 or more; a recorded 0 is taken as 1, since no engine answers with less.
        blocks: Names of the prompt's blocks, the last of which may not be full.
    """

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]


def recorded_block_tokens(path: Path) -> int | None:
    """Return the tokens of a block that a trace's first line tells; None where it tells none."""
    try:
        with path.open("rb") as lines:
            line = orjson.loads(lines.readline())
    except (OSError, ValueError):
        return None  # whoever reads the trace says so
    found = line.get("block_tokens") if isinstance(line, dict) else None
    return found if type(found) is int and found > 0 else None


def read_requests(path: Path, block_tokens: int, speed: float = 1.0) -> list[TraceRequest]:
    """Read a trace, in the order of arrival.

    Args:
        block_tokens: Tokens of a block, 1 or more; a line that tells another number is a problem.
        speed: Over 0; at 2 the requests come twice as fast.

    Raises:
        ConfigurationError: The file can't be read, or lines of it are no requests: all of these, up to a limit.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError([Problem("--trace", f"{path}: {error.strerror}", "a file that can be read")]) from None
    requests, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            requests.append(_request(orjson.loads(line), block_tokens, speed))
        except ValueError as error:
            remedy = '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [names]}'
            problems.append(Problem(f"{path}:{number}", str(error), remedy))
            if len(problems) == MAX_PROBLEMS:
                break
    if not requests and not problems:
        problems.append(Problem("--trace", f"{path} holds no requests", "one JSON object a line"))
    if problems:
        raise ConfigurationError(problems)
    return sorted(requests, key=lambda request: request.at_s)


def _request(line: Any, block_tokens: int, speed: float) -> TraceRequest:
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    for name, least in FIELDS.items():
        value = line.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise ValueError(f"{name} must be a number of at least {least}, not {str(value)[:40]}")
    names = line.get("hash_ids")
    if not isinstance(names, list) or not all(type(name) is int for name in names):
        raise ValueError("hash_ids must be a list of whole numbers")
    if line.get("block_tokens", block_tokens) != block_tokens:
        raise ValueError(f"its blocks have {str(line['block_tokens'])[:40]} tokens, others {block_tokens}")
    prompt_tokens = int(line["input_length"])
    if not prompt_tokens // block_tokens <= len(names) <= -(-prompt_tokens // block_tokens):
        raise ValueError(
            f"{len(names)} hash_ids do not fit {prompt_tokens} tokens in blocks of {block_tokens} (`--block-tokens`)"
        )
    at_s = line["timestamp"] / 1_000 / speed
    return TraceRequest(at_s, prompt_tokens, max(1, int(line["output_length"])), tuple(names))
