"""The demo's traffic against a real simulated engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.workloads.conversations import Session, Workload
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.schedule import closed_loop
from loadtest.workloads.text import TextMaker, tokenizer_folder
from router.tools.demo_plan import MIX
from router.tools.demo_report import make_bound
from router.tools.demo_traffic import Exchange, send_sessions
from router.tools.local_fleet import EngineOptions
from router.tools.processes import Child, stop_all, wait_for

TEXT = ChatText.load(tokenizer_folder())
BLOCKS = 4_000


def start_engine(folder: Path, *extra: str) -> tuple[Child, str]:
    options = EngineOptions(num_blocks=BLOCKS, prefill_tokens_per_s=500_000, decode_step_s=0.0005, extra=extra)
    engine = Child("engine", [sys.executable, "-m", "router.cli", "simengine", *options.arguments()], folder)
    return engine, wait_for("the engine", engine.ready_line, [engine], 30)["http"]


@pytest.fixture
def engine_url(tmp_path: Path) -> Iterator[str]:
    """A fast engine whose cache holds everything."""
    engine, url = start_engine(tmp_path)
    yield url
    stop_all([engine])


def impatient_sessions(count: int) -> list[Session]:
    """Sessions of the demo without pauses."""
    workload = Workload(MIX, TextMaker(TEXT.tokenizer), 3)
    sessions = []
    for index in range(count):
        session = workload.session(index)
        turns = tuple(type(turn)(turn.text, turn.answer_tokens, 0.0) for turn in session.turns)
        sessions.append(type(session)(session.session_id, session.kind, session.system, turns, session.remembers))
    return sessions


async def send(url: str, sessions: list[Session], users: int) -> list[Exchange]:
    return await send_sessions(url, "tiny", closed_loop(sessions, users))


async def test_every_turn_is_sent_and_timed(engine_url: str) -> None:
    """Each turn gives one record with a TTFT inside its whole time and the answer's exact length."""
    sessions = impatient_sessions(6)
    exchanges = await send(engine_url, sessions, users=4)
    records = [exchange.record for exchange in exchanges]
    assert [record.cause for record in records] == [None] * sum(len(session.turns) for session in sessions)
    assert all(record.ttft_s is not None and 0 < record.ttft_s <= record.total_s for record in records)
    wanted = sorted(turn.answer_tokens for session in sessions for turn in session.turns)
    assert sorted(len(exchange.answer.token_ids) for exchange in exchanges) == wanted


async def test_one_by_one_the_engine_hits_exactly_what_the_bound_says(engine_url: str) -> None:
    """With room for everything and one user, engine and bound, which share no code, agree on every token."""
    exchanges = await send(engine_url, impatient_sessions(5), users=1)
    bound = make_bound(exchanges, TEXT, BLOCKS, 16)
    assert bound.evicted_blocks == 0
    assert bound.cached_tokens > 0
    assert sum(exchange.record.cached_tokens or 0 for exchange in exchanges) == bound.cached_tokens
    assert sum(exchange.record.prompt_tokens or 0 for exchange in exchanges) == bound.prompt_tokens


async def test_a_refused_request_ends_its_session_alone(tmp_path: Path) -> None:
    """A failing endpoint gives one failed record a session, and the run ends."""
    engine, url = start_engine(tmp_path, "--fault", "refuse=503")
    try:
        exchanges = await send(url, impatient_sessions(5), users=2)
    finally:
        stop_all([engine])
    assert [(exchange.record.cause or "")[:8] for exchange in exchanges] == ["http-503"] * 5


async def test_nobody_listening_is_an_error_of_the_request(tmp_path: Path) -> None:
    """A refused connection is recorded rather than raised."""
    engine, url = start_engine(tmp_path)
    stop_all([engine])
    (exchange,) = await send(url, impatient_sessions(1), users=1)
    assert exchange.record.cause == "not-connected"
