"""Where an engine's events are, from what it and the operator say; and its HTTP side when it misbehaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from replica.agent.engine import Engine, RankSource, rank_sources
from replica.errors import EngineError
from router.kv.registration import RegisteredModel


def config(port: int, **more: Any) -> dict[str, Any]:
    endpoints = {"endpoint": f"tcp://*:{port}", "replay_endpoint": f"tcp://*:{port + 100}"}
    return {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "", **endpoints, **more}


def test_the_real_engines_answer_is_read(golden: Path) -> None:
    """The recorded /kv_event_sources gives one rank with both its sockets."""
    sources = json.loads((golden / "kv_event_sources.json").read_text())
    assert rank_sources(sources, ["0"], "127.0.0.1", None, None) == (
        RankSource(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657"),
    )


def test_a_wildcard_is_reached_at_the_engines_host() -> None:
    """`*`, 0.0.0.0 and [::] are where the engine's HTTP side is."""
    for bound in ("tcp://*:7", "tcp://0.0.0.0:7", "tcp://[::]:7"):
        (rank,) = rank_sources({"0": config(1, endpoint=bound)}, [], "10.0.0.9", None, None)
        assert rank.events == "tcp://10.0.0.9:7"
    (rank,) = rank_sources({"0": config(5557)}, [], "fd00::9", None, None)
    assert rank.events == "tcp://[fd00::9]:5557"


def test_each_listed_rank_is_a_unit_with_its_own_sockets() -> None:
    """Three ranks behind one port; and one rank alone, as with a port for each."""
    sources = {str(rank): config(5557 + rank) for rank in (2, 0, 1)}
    found = rank_sources(sources, ["0", "1", "2"], "h", None, None)
    assert [(r.rank, r.events, r.replay) for r in found] == [
        (rank, f"tcp://h:{5557 + rank}", f"tcp://h:{5657 + rank}") for rank in (0, 1, 2)
    ]
    assert rank_sources({"2": config(5559)}, ["2"], "h", None, None)[0].rank == 2


def test_ranks_that_nobody_lists_are_at_port_plus_rank() -> None:
    """An older engine has no /kv_event_sources: its metrics tell the ranks, the operator the first sockets."""
    found = rank_sources({}, ["0", "1"], "h", "tcp://h:5557", "tcp://h:5657")
    assert found == (
        RankSource(0, "tcp://h:5557", "tcp://h:5657"),
        RankSource(1, "tcp://h:5558", "tcp://h:5658"),
    )


def test_the_operators_address_of_one_rank_is_taken_as_it_is() -> None:
    """With rank 2 alone, --kv-events names rank 2's socket."""
    assert rank_sources({"2": config(1)}, ["2"], "h", "tcp://h:5559", None)[0].events == "tcp://h:5559"


@pytest.mark.parametrize(
    "sources",
    [
        {},
        {"0": {}},
        {"0": config(1, enable_kv_cache_events=False)},
        {"0": config(1, publisher="null")},
        {"x": 1},
        {"0": 7},
    ],
)
def test_an_engine_without_events_is_one_rank_without_sockets(sources: dict[str, Any]) -> None:
    """Nothing listed, or events that are off: a unit all the same, without a source."""
    assert rank_sources(sources, [], "h", None, None) == (RankSource(0, None, None),)


class Answers:
    """An HTTP server whose answers a test sets."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}

    async def answer(self, request: web.Request) -> web.Response:
        status, body = self.answers.get(request.path, (404, b""))
        return web.Response(status=status, body=body)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Answers, Engine]]:
    """A server and a client of it."""
    answers = Answers()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answers.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield answers, Engine(session, f"http://127.0.0.1:{runner.addresses[0][1]}/", None)
    await runner.cleanup()


async def test_the_real_engines_models_are_read(served, golden: Path) -> None:  # type: ignore[no-untyped-def]
    """The recorded /v1/models gives name, root and length; an adapter beside it has its parent."""
    answers, engine = served
    cases = json.loads((golden / "engine_http.json").read_text())["cases"]
    recorded = next(case["json"] for case in cases if case["path"] == "/v1/models" and case["status"] == 200)
    adapter = {**recorded["data"][0], "id": "sql", "root": "/loras/sql", "parent": "tiny", "max_model_len": None}
    answers.answers["/v1/models"] = (200, json.dumps({"data": [*recorded["data"], adapter, 7, {"id": 1}]}).encode())
    assert await engine.models() == (
        RegisteredModel("tiny", "/models/tiny", None, 2048),
        RegisteredModel("sql", "/loras/sql", "tiny", None),
    )


async def test_an_engine_without_the_newer_paths_is_read(served) -> None:  # type: ignore[no-untyped-def]
    """404 on /version and /kv_event_sources is an older engine, not a broken one."""
    answers, engine = served
    answers.answers.update({"/v1/models": (200, b'{"data": []}'), "/metrics": (200, b"")})
    facts = await engine.facts(None, None)
    assert (facts.version, facts.ranks) == ("", (RankSource(0, None, None),))


@pytest.mark.parametrize("models", [(500, b""), (200, b"[]"), (200, b"{"), (200, b'{"data": 1}'), (401, b"{}")])
async def test_an_engine_that_answers_nonsense_is_an_engine_error(models, served) -> None:  # type: ignore[no-untyped-def]
    """Errors and nonsense raise EngineError, so that the agent tries again."""
    answers, engine = served
    answers.answers["/v1/models"] = models
    with pytest.raises(EngineError):
        await engine.facts(None, None)


async def test_a_dead_engine_behind_a_living_server_is_not_healthy(served) -> None:  # type: ignore[no-untyped-def]
    """/health of 503 is a failed engine."""
    answers, engine = served
    answers.answers["/health"] = (503, b"")
    assert not await engine.healthy(1.0)
    answers.answers["/health"] = (200, b"")
    assert await engine.healthy(1.0)


async def test_sglang_is_seen_by_its_models_and_metrics(served) -> None:  # type: ignore[no-untyped-def]
    """Its arguments tell version and sockets; none of its secrets is kept."""
    answers, engine = served
    config = {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": None}
    about = {"version": "0.5.19", "kv_events_config": json.dumps(config), "page_size": 16, "api_key": "AK-1"}
    models = {"data": [{"id": "m", "owned_by": "sglang", "root": "m"}]}
    answers.answers["/v1/models"] = (200, json.dumps(models).encode())
    answers.answers["/server_info"] = (200, json.dumps(about).encode())
    facts = await engine.facts(None, None)
    assert (facts.engine, facts.version) == ("sglang", "0.5.19")
    assert facts.ranks == (RankSource(0, "tcp://127.0.0.1:5557", None),)
    assert facts.cache(0).block_size == 16
    assert "AK-1" not in repr(facts)
    assert (await engine.facts(None, None, "vllm")).engine == "vllm"
