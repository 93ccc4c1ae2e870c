"""A traced request on its way: what the engine is told, what is noted, and that others pass as they came."""

from __future__ import annotations

from typing import Any

import pytest

from router.config_tracing import TracingConfig
from router.telemetry.tracing import Ended, Trace, Tracing

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


class Kept:
    """Keeps what ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[Trace, Ended]] = []

    def export(self, trace: Trace, ended: Ended) -> None:
        """See `Spans`."""
        self.ended.append((trace, ended))

    def close(self) -> None:
        """See `Spans`."""


@pytest.fixture
def kept() -> Kept:
    """Where traces go."""
    return Kept()


def trace(item: Any, kept: Kept) -> None:
    """Have a data plane trace what clients trace."""
    config = TracingConfig(endpoint="http://127.0.0.1/", sample_share=0.0)
    item.plane.forwarder.tracing = Tracing(config, kept)


async def test_the_engine_gets_our_span_for_its_parent(harness, engine, wire, kept, eventually) -> None:
    """Same trace, other parent; tracestate and all else as it came; its times are in order."""
    one = await engine()
    item = await harness(one)
    trace(item, kept)
    await item.ask(wire.post(wire.chat_body(), headers=[f"TraceParent: {PARENT}", "tracestate: a=1", "x-y: z"]))
    asked = one.asked[0]
    await eventually(lambda: kept.ended)
    [(noted, ended)] = kept.ended
    assert asked.all("traceparent") == [f"00-{TRACE_ID}-{noted.forward_id:016x}-01"]
    assert (asked.one("tracestate"), asked.one("x-y")) == ("a=1", "z")
    assert (ended.method, ended.path, ended.outcome.status) == ("POST", "/v1/chat/completions", 200)
    assert len(noted.placed) == 1
    assert noted.sent_s is not None
    assert noted.read_s is not None
    assert noted.first_token_s is not None
    placed_s = noted.placed[0][0].placed_s
    times = [noted.arrived_s, noted.body_s, noted.read_s, placed_s, noted.sent_s, noted.first_token_s, ended.at_s]
    assert times == sorted(times)
    assert item.notes.outcomes[-1][0].trace_id == TRACE_ID


@pytest.mark.parametrize("given", [f"00-{TRACE_ID}-00f067aa0ba902b7-00", "no trace"])
async def test_what_is_not_traced_passes_as_it_came(harness, engine, wire, kept, given: str) -> None:
    """An unsampled trace goes through to the engine, which may have its own mind."""
    one = await engine()
    item = await harness(one)
    trace(item, kept)
    await item.ask(wire.post(wire.chat_body(), headers=[f"traceparent: {given}"]))
    assert one.asked[0].all("traceparent") == [given]
    assert kept.ended == []


async def test_a_retried_request_has_each_placement(harness, engine, wire, kept, eventually) -> None:
    """The first replica can't be connected to; both placements are noted, and the one that answered is the last."""
    gone, there = await engine(), await engine()
    item = await harness(gone, there, placement={"policy": "round-robin"})
    trace(item, kept)
    gone.refuse()
    answer = await item.ask(wire.post(wire.chat_body(), headers=[f"traceparent: {PARENT}"]))
    await eventually(lambda: kept.ended)
    [(noted, ended)] = kept.ended
    assert ended.outcome.status == 200
    assert [placement.replica.replica_id for placement, _ in noted.placed][-1] == answer.one("x-warmroute-replica")
    assert len(noted.placed) == 2
