"""Sessions from a recorded trace, one request each (the format is told in loadtest/workloads/mooncake.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from loadtest.workloads.mooncake import read_requests
from router.tools.simulation.requests import Session, Turn


def spread(sessions: list[Session], over_s: float, seed: int) -> list[Session]:
    """Move each request later by up to `over_s` seconds, at random.

    Recorded times are rounded (Mooncake's to 3 s), and a crowd at one moment is not what several routers can share.
    """
    rng = Random(f"{seed}/spread")
    moved = [replace(session, start_s=session.start_s + rng.random() * over_s) for session in sessions]
    return sorted(moved, key=lambda session: session.start_s)


def read_trace(path: Path, block_tokens: int, speed: float = 1.0) -> list[Session]:
    """Read a trace; arguments and errors are `read_requests`'."""
    requests = read_requests(path, block_tokens, speed)
    return [
        Session(request.at_s, (Turn(request.prompt_tokens, request.answer_tokens, request.blocks),))
        for request in requests
    ]


def asked_blocks(sessions: list[Session]) -> Iterator[tuple[int, ...]]:
    """Yield the prompts' blocks in the order of arrival, as far as that is known beforehand."""
    for session in sessions:
        for turn in session.turns:
            yield turn.blocks
