"""An agent restarts beside a living engine, and an engine restarts behind a living agent: on real sockets."""

from __future__ import annotations

import signal
from array import array
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from replica.agent.private_state import Saved
from router.kv import registration
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme


async def left_behind(attach, publisher, events, eventually, replay: bool = True) -> Any:  # type: ignore[no-untyped-def]
    """An agent that heard five blocks, one of them twice, and is no more; the engine replays its last two batches."""
    publisher.buffer_steps = 2
    one = await attach(replay)
    for block in range(5):
        publisher.publish([events.stored([block])])
    publisher.publish([events.stored([0])])
    await eventually(lambda: one.live() == {0, 1, 2, 3, 4} and one.unit.tally.events["BlockStored"] == 6)
    await one.stop()
    return one


async def test_the_next_agent_goes_on_from_the_last_ones_state(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """The record no longer reaches back to batch 0, but to where the state ends: all is known, copies too, and what
    came meanwhile; nothing is unverified."""
    one = await left_behind(attach, publisher, events, eventually)
    publisher.publish([events.removed([4])])
    two = await attach(left=one)
    assert two.live() == {0, 1, 2, 3}
    assert (two.unit.head_lost, two.unit.unverified, two.unit.tally.restored) == (False, False, 1)
    publisher.publish([events.removed([0])])
    publisher.publish([events.removed([1])])
    await eventually(lambda: two.live() == {0, 2, 3})


async def test_a_state_that_the_record_does_not_reach_is_not_used(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Batches between the state and the record are lost: what the unit holds is unknown but for what came since."""
    one = await left_behind(attach, publisher, events, eventually)
    for block in (21, 22, 23, 24):
        publisher.publish([events.stored([block])])
    two = await attach(left=one)
    assert two.live() == {23, 24}
    assert two.unit.head_lost


async def test_a_state_of_another_life_is_not_used(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """The engine restarted meanwhile, and is as far again: its batch of the same number is another one."""
    one = await left_behind(attach, publisher, events, eventually)
    await publisher.restart()
    for block in range(31, 39):
        publisher.publish([events.stored([block])])
    two = await attach(left=one)
    assert two.live() == {37, 38}
    assert two.unit.tally.restored == 0


async def test_without_a_record_the_state_waits_for_the_next_batch(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """No replay socket, but the engine's start is the same: unverified until the batch that follows it comes."""
    publisher.started_s = 1.7e9
    one = await left_behind(attach, publisher, events, eventually, replay=False)
    two = await attach(False, left=one)
    assert two.live() == {0, 1, 2, 3, 4}
    assert two.unit.unverified
    assert two.unit.saved("http://engine") is None
    publisher.publish([events.stored([7])])
    await eventually(lambda: two.live() == {0, 1, 2, 3, 4, 7})
    assert not two.unit.unverified


async def test_without_a_record_a_missed_batch_voids_the_state(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """A batch came while no agent was there: its number is missing, so the state is void."""
    publisher.started_s = 1.7e9
    one = await left_behind(attach, publisher, events, eventually, replay=False)
    publisher.publish([events.stored([6])])
    two = await attach(False, left=one)
    assert two.unit.unverified
    publisher.publish([events.stored([7])])
    await eventually(lambda: two.live() == {7})
    assert two.unit.head_lost


@pytest.mark.parametrize("started_s", [None, 1.7e9 + 60])
async def test_without_a_record_and_the_same_start_there_is_no_state(  # type: ignore[no-untyped-def]
    started_s: float | None, attach, publisher, events, eventually
) -> None:
    """An engine that started at another time, or does not tell when: nothing is taken over."""
    publisher.started_s = 1.7e9
    one = await left_behind(attach, publisher, events, eventually, replay=False)
    publisher.started_s = started_s
    two = await attach(False, left=one)
    assert (two.live(), two.unit.unverified) == (set(), False)


async def test_another_start_of_the_engine_is_another_life(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Its metrics tell a later start, and no batch has come since: the old life's blocks are dropped at once."""
    one = await attach(False)
    publisher.publish([events.stored([1])], at_s=1.7e9 + 5)
    await eventually(lambda: one.live() == {1})
    for started_s in (1.7e9, 1.7e9 + 0.2):
        one.reader.engine_started(started_s)
    publisher.publish([events.stored([2])], at_s=1.7e9 + 6)
    await eventually(lambda: one.live() == {1, 2})
    one.reader.engine_started(1.7e9 + 60)
    await eventually(lambda: one.live() == set())
    assert one.unit.tally.restarts == 1


async def test_a_start_that_its_batches_told_already_changes_nothing(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """The new life's batches came before its metrics: they stay."""
    one = await attach()
    one.reader.engine_started(1.7e9)
    publisher.publish([events.stored([1])], at_s=1.7e9 + 5)
    await eventually(lambda: one.live() == {1})
    await publisher.restart()
    publisher.publish([events.stored([2])], at_s=1.7e9 + 61)
    await eventually(lambda: one.live() == {2})
    one.reader.engine_started(1.7e9 + 60)
    publisher.publish([events.stored([3])], at_s=1.7e9 + 62)
    await eventually(lambda: one.live() == {2, 3})
    assert one.unit.tally.restarts == 1


async def test_batches_of_a_life_that_ended_change_nothing(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Frames of the former life arrive behind the restart: by their time, or as the engine's record lacks them."""
    one = await attach()
    one.reader.engine_started(1.7e9)
    for block in range(4):
        publisher.publish([events.stored([block])], at_s=1.7e9 + 5)
    old = publisher.publish([events.stored([8])], lose=True, at_s=1.7e9 + 6)
    timeless = publisher.publish_payload(msgspec.msgpack.encode([None, [events.stored([9])], 0]), lose=True)
    await eventually(lambda: one.live() == {0, 1, 2, 3})
    await publisher.restart()
    one.reader.engine_started(1.7e9 + 60)
    publisher.publish([events.stored([20])], at_s=1.7e9 + 61)
    await eventually(lambda: one.live() == {20})
    epochs = one.epochs
    publisher.send(old)
    publisher.send(timeless)
    publisher.publish([events.stored([21])], at_s=1.7e9 + 62)
    await eventually(lambda: one.live() == {20, 21})
    assert one.unit.tally.late == 2
    assert one.epochs == epochs


async def test_a_killed_agent_is_followed_by_one_that_knows_all(start, redis_url, golden, mirror, eventually) -> None:  # type: ignore[no-untyped-def]
    """As commands: the engine has no replay socket, the agent is killed with a state on disk, and the next one's unit
    is exact again, with every block, after the engine's next batch."""
    model = ("--model", "tiny", "--tokenizer", str(Path(golden) / "tokenizer"), "--hash-algo", "sha256_cbor")
    engine = await start("simengine", *model, "--replay-port", "off")
    options = ("--engine-url", engine.ready["http"], "--replica-id", "r0", "--lease-s", "2", "--snapshot-s", "0.2")
    prompts = [list(range(100 * n, 100 * n + 80)) for n in range(1, 4)]

    async def complete(prompt: list[int]) -> None:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
        url = engine.ready["http"] + "/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as got:
            assert got.status == 200

    def blocks(count: int) -> set[tuple[int, int, int]]:
        scheme = Scheme(HashAlgorithm.SHA256_CBOR, 16)
        return {(block, 0, 0) for prompt in prompts[:count] for block in chain(prompt, scheme)}

    def trust() -> str:
        return registration.decode(mirror.client.get(mirror.keys.lease("r0/0")), None).trust

    first = await start("agent", *options, WARMROUTE_AGENT_REDIS=redis_url)
    await complete(prompts[0])
    await complete(prompts[1])
    await eventually(lambda: (mirror.dump("r0/0") or set()) >= blocks(2))
    folder = Path(first.environment["TMPDIR"])

    def kept() -> set[int]:
        found = [msgspec.msgpack.decode(path.read_bytes(), type=Saved) for path in folder.glob("*/*.state")]
        return {block for saved in found for layer in saved.layers for block in array("Q", layer.blocks)}

    await eventually(lambda: kept() >= {block for block, _, _ in blocks(2)})
    await first.end(signal.SIGKILL)
    await start("agent", *options, WARMROUTE_AGENT_REDIS=redis_url)
    await complete(prompts[2])
    await eventually(lambda: trust() == "exact" and (mirror.dump("r0/0") or set()) >= blocks(3))
