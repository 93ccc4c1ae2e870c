"""The documented rights are enough for agents and routers, and for nothing else; a real Valkey."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis as sync_redis

from replica.agent import redis_link as agent_link
from replica.agent.command import configure
from replica.agent.lane import Lane
from replica.agent.settings import AgentSettings, from_args
from replica.agent.text_publisher import TextPublisher
from router.feeds.redis_link import RedisLink
from router.kv.acl import agent_rules, router_rules
from router.kv.keys import Keys, lane_of
from router.kv.wire import Change, decode

UNIT = "r0/0"
DOCUMENT = Path(__file__).parents[2] / "docs" / "redis.md"


@pytest.fixture
def user(redis_url: str):  # type: ignore[no-untyped-def]
    """`user(rules)`: the URL of a user with these rules; all are removed after the test."""
    made: list[str] = []
    with sync_redis.Redis.from_url(redis_url) as client:

        def make(rules: str) -> str:
            made.append(f"u{len(made)}")
            client.execute_command("ACL", "SETUSER", made[-1], "reset", "on", ">secret", *rules.split())
            return f"redis://{made[-1]}:secret@{urlsplit(redis_url).netloc}/0"

        yield make
        client.execute_command("ACL", "DELUSER", *made)


def text_settings(redis_url: str, folder: Path) -> AgentSettings:
    """Settings of an agent that publishes a folder."""
    (folder / "tokenizer.json").write_text("{}")
    parser = argparse.ArgumentParser()
    configure(parser)
    given = ("--engine-url", "http://127.0.0.1:8000", "--redis", redis_url, "--tokenizer", str(folder))
    return from_args(parser.parse_args(given), {})


async def test_agent_and_router_need_no_more_than_the_documented_rights(
    user: Callable[[str], str], tmp_path: Path, eventually: Any
) -> None:
    """Every step of an agent's lane and every command of a router's link works under them."""
    client, link = agent_link.connect(user(agent_rules())), RedisLink(user(router_rules()), Keys())
    lane, number = Lane(client, Keys(), UNIT, 10.0, 30.0), lane_of(UNIT)
    await link.open()
    await lane.mint()
    await lane.write_snapshot([(0, 0, 0, [1])], 0, lane.stream_id)
    await lane.renew(b"lease")
    await lane.enrol()
    cursors = await link.last_ids(range(16))
    await lane.publish([(Change("stored", 0, 0, 0, [2]),)])
    await lane.write_snapshot([(0, 0, 0, [1, 2])], 1, lane.stream_id)
    await lane.renew(b"lease")
    assert await lane.taken()
    assert list(await link.units(60)) == [UNIT]
    assert await link.leases([UNIT]) == {UNIT: b"lease"}
    snapshot = await link.snapshot(UNIT)
    assert snapshot is not None
    assert list(snapshot.layers[0][3]) == [1, 2]
    assert [key for key, _ in await link.read_lanes(cursors)] == [number]
    assert [getattr(decode(data or b""), "sequence", None) for _, data, _ in await link.tail(number, "0-0")] == [1]
    publisher = TextPublisher(text_settings(user(agent_rules()), tmp_path), client)
    publisher.look((), (1,))
    writing = asyncio.create_task(publisher.run())
    await eventually(lambda: publisher.files)
    assert await link.text_file(publisher.files["tokenizer.json"], 10) == b"{}"
    publisher.end()
    await writing
    await link.write_drain("r0", b"order", 10_000)
    assert await link.drains(["r0", "r1"]) == {"r0": b"order", "r1": None}
    assert await client.run("r0", "GET", Keys().drain("r0")) == b"order"
    await link.write_drain("r0", None, 0)
    await link.write_doubt("r0/0", b"doubt")
    assert await client.run(Keys().doubts("r0/0"), "LPOP", Keys().doubts("r0/0"), 10) == [b"doubt"]
    assert await link.exchange_rates("router", b"rates", ["gone"]) == {"router": b"rates"}
    await link.write_loads({number: b"load"})
    assert [[data for _, data, _ in found] for _, found in (await link.read_loads({number: "0-0"}))] == [[b"load"]]
    assert list(await link.last_loads([number])) == [number]
    await lane.retire()
    assert await link.units(60) == {}
    await link.close()
    await client.close()


@pytest.mark.parametrize(
    ("rules", "command"),
    [
        (agent_rules, "GET other"),
        (agent_rules, "SET wr:x 1"),
        (agent_rules, "GET {wrong}:units"),
        (agent_rules, "KEYS *"),
        (agent_rules, "FLUSHALL"),
        (agent_rules, "CONFIG GET *"),
        (agent_rules, "ACL LIST"),
        (agent_rules, "PUBLISH c x"),
        (router_rules, "SET {wr:1}:lease:r0/0 x"),
        (router_rules, "DEL {wr:1}:lease:r0/0"),
        (router_rules, "SET {wr:text}:0 x"),
        (router_rules, "ZADD {wr}:units 1 x"),
        (router_rules, "XADD {wr:1}:stream * d x"),
        (router_rules, "EVAL return 0"),
        (router_rules, "GET other"),
    ],
)
async def test_nothing_else_is_allowed(user: Callable[[str], str], rules: Callable[[], str], command: str) -> None:
    """Other keys, other namespaces, writing as a router, and what concerns the server are refused."""
    client = agent_link.connect(user(rules()))
    with pytest.raises(sync_redis.exceptions.NoPermissionError):
        async with asyncio.timeout(5):
            await client.run("x", *command.split(), *(["0"] if command.startswith("EVAL") else []))
    await client.close()


def test_the_document_gives_these_rules() -> None:
    """What an operator copies is what is tested."""
    text = DOCUMENT.read_text()
    assert f"user warmroute-agent on >PASSWORD {agent_rules()}" in text
    assert f"user warmroute-router on >PASSWORD {router_rules()}" in text
