"""What is tried again and what is not (PRX-14), and replicas that fail (RTE-08)."""

from __future__ import annotations

import asyncio
import time

import pytest


async def test_a_refused_connection_goes_to_another_replica(harness, engine, wire) -> None:
    """(a) r0 refuses: the client gets 200 from r1; one request was generated in all; the decision names the retry."""
    one, two = await engine(), await engine()
    item = await harness(one, two, placement={"policy": "round-robin"})
    one.refuse()
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.one("x-warmroute-replica")) == (200, "r1")
    assert item.notes.retries == ["connect_failed"]
    assert [decision.retries for decision in item.notes.decisions] == [[], ["r0"]]
    assert len(two.asked) == 1
    item.assert_accounted()


async def reset(asked, writer) -> None:
    writer.transport.abort()


async def finish_late(asked, writer) -> None:
    await asyncio.sleep(0.1)
    writer.close()


async def bad_gateway(asked, writer) -> None:
    writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nbad")


async def half_a_head(asked, writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncont")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("behave", "code"),
    [
        (reset, "upstream_broken"),
        (finish_late, "upstream_broken"),
        (half_a_head, "upstream_broken"),
        (bad_gateway, None),
    ],
)
async def test_what_may_have_been_generated_is_not_repeated(harness, engine, wire, behave, code) -> None:
    """(b, c, d) A new connection that took the whole request and died, or an engine's own 502: sent once, 502."""
    one, two = await engine(behave), await engine(behave)
    item = await harness(one, two)
    answer = await item.ask(wire.post(wire.chat_body()))
    assert answer.status == 502
    if code is None:
        assert answer.body == b"bad"
    else:
        assert answer.code == code
    assert len(one.asked) + len(two.asked) == 1
    assert sum(replica.failures_in_a_row for replica in item.fleet.replicas.values()) == 1
    item.assert_accounted()


@pytest.mark.parametrize("behave", [reset, finish_late, half_a_head])
async def test_where_the_operator_allows_it_a_broken_request_goes_elsewhere(harness, engine, wire, behave) -> None:
    """`retry.broken`: r0 takes the whole request and dies before its answer: the client gets 200 from r1."""
    one, two = await engine(behave), await engine()
    item = await harness(one, two, placement={"policy": "round-robin"}, retry={"broken": True})
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.one("x-warmroute-replica")) == (200, "r1")
    assert item.notes.retries == ["upstream_broken"]
    assert [decision.retries for decision in item.notes.decisions] == [[], ["r0"]]
    assert (len(one.asked), len(two.asked)) == (1, 1)
    item.assert_accounted()


async def test_a_request_that_broke_everywhere_may_have_been_generated(harness, engine, wire) -> None:
    """`retry.broken`: one replica dies with the request, the other refuses to connect: not told safe to repeat."""
    one, two = await engine(reset), await engine()
    item = await harness(one, two, placement={"policy": "round-robin"}, retry={"broken": True})
    two.refuse()
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code, answer.one("x-should-retry")) == (502, "upstream_broken", "false")
    item.assert_accounted()


async def test_a_stream_that_began_is_never_repeated(harness, engine, wire) -> None:
    """`retry.broken`: an answer whose head came is the one that the client gets, cut."""

    async def begin(asked, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegun")
        await writer.drain()
        writer.close()

    one, two = await engine(begin), await engine(begin)
    item = await harness(one, two, retry={"broken": True})
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.body, answer.ended) == (200, b"begun", False)
    assert len(one.asked) + len(two.asked) == 1


async def test_a_stale_connection_is_tried_once_more_on_a_new_one(harness, engine, wire) -> None:
    """A kept connection that closes as the request leaves, with nothing received: sent again, to the same replica."""
    behaviours = iter(["ok", "close", "ok", "close", "close"])

    async def behave(asked, writer) -> None:
        if next(behaviours) == "ok":
            writer.write(wire.ok())
        else:
            writer.transport.abort()

    one = await engine(behave)
    item = await harness(one)
    client = await item.client()
    for status in (200, 200, 502):
        assert (await client.ask(wire.post(wire.chat_body()))).status == status
    assert item.notes.retries == ["stale_connection"] * 2
    assert len(one.asked) == 5
    item.assert_accounted()


async def test_a_late_close_is_not_taken_for_a_stale_connection(harness, engine, wire) -> None:
    """A kept connection that closes after more than a tenth of a second may have been at work: 502, sent once."""
    seen = 0

    async def behave(asked, writer) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            writer.write(wire.ok())
            return
        asyncio.get_running_loop().call_later(0.3, writer.close)
        await writer.wait_closed()

    one = await engine(behave)
    item = await harness(one)
    client = await item.client()
    assert (await client.ask(wire.post(wire.chat_body()))).status == 200
    assert (await client.ask(wire.post(wire.chat_body()))).status == 502
    assert len(one.asked) == 2


async def test_attempts_are_bounded_when_all_are_down(harness, engine, wire) -> None:
    """With every replica refusing, a request makes `retry.attempts` attempts, then 502 connect_failed."""
    engines = [await engine() for _ in range(4)]
    item = await harness(*engines, retry={"attempts": 2, "eject_after": 1_000})
    for one in engines:
        one.refuse()
    answers = await asyncio.gather(*(item.ask(wire.post(wire.chat_body())) for _ in range(20)))
    assert {(answer.status, answer.code) for answer in answers} == {(502, "connect_failed")}
    assert len(item.notes.decisions) == 40
    item.assert_accounted()


async def test_no_replica_left_to_try_is_a_connect_failure(harness, engine, wire) -> None:
    """One replica, refusing: 502 connect_failed; once it is down: 503 no_replica_available with Retry-After."""
    one = await engine()
    item = await harness(one, retry={"eject_after": 1})
    one.refuse()
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code) == (502, "connect_failed")
    item.fleet.mark_down("r0", "probes fail")
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code) == (503, "no_replica_available")
    assert answer.one("retry-after")
    assert answer.one("content-type") == "application/json"
    item.assert_accounted()


async def test_unknown_models_are_404(harness, engine, wire) -> None:
    """A model that nobody serves is refused in OpenAI's shape without asking an engine."""
    one = await engine()
    item = await harness(one)
    answer = await item.ask(wire.post(wire.chat_body(model="unknown")))
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert one.connections == 0
    item.assert_accounted()


async def test_no_answer_in_time_is_504(harness, engine, wire, eventually) -> None:
    """A replica that takes a request and never answers: 504, its connection closed, and it counts as a failure."""

    async def silent(asked, writer) -> None:
        await asyncio.sleep(30)

    one = await engine(silent)
    item = await harness(one, timeouts={"first_byte_s": 0.2})
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code) == (504, "upstream_timeout")
    assert item.fleet.replicas["r0"].failures_in_a_row == 1
    await eventually(lambda: one.open == 0)
    item.assert_accounted()


async def test_an_endless_answer_is_cut(harness, engine, wire) -> None:
    """After `total_s` a stream is cut; a replica that was answering is not to blame."""

    async def endless(asked, writer) -> None:
        writer.write(wire.sse_head)
        while True:
            writer.write(wire.chunk(b"data: x\n\n"))
            await asyncio.sleep(0.02)

    item = await harness(await engine(endless), timeouts={"total_s": 0.3})
    answer = await item.ask(wire.post(wire.chat_body(stream=True)))
    assert not answer.ended
    assert item.notes.last.error == "upstream_timeout"
    assert item.fleet.replicas["r0"].failures_in_a_row == 0
    item.assert_accounted()


async def holds_the_prefix(item, engines, wire, text):
    """Make r0 remember the prompt, then let r1 and r2 join."""
    for number in (1, 2):
        item.fleet.withdraw(f"r{number}")
    assert (await item.ask(wire.post(wire.chat_body(text)))).one("x-warmroute-replica") == "r0"
    for number in (1, 2):
        item.announce(engines[number], f"r{number}")
    assert (await item.ask(wire.post(wire.chat_body(text)))).one("x-warmroute-replica") == "r0"
    for one in engines:
        one.asked.clear()


async def burst(item, wire, text, count=100, at_once=20):
    gate = asyncio.Semaphore(at_once)

    async def one():
        async with gate:
            return await item.ask(wire.post(wire.chat_body(text)))

    return await asyncio.gather(*(one() for _ in range(count)))


async def test_a_replica_that_refuses_is_skipped_after_a_few(harness, engine, wire) -> None:
    """(RTE-08a) The prefix's holder refuses: 100 of 100 succeed elsewhere, and only the first few tried it."""
    engines = [await engine() for _ in range(3)]
    item = await harness(*engines)
    text = "shared prefix " * 100
    await holds_the_prefix(item, engines, wire, text)
    engines[0].refuse()
    answers = await burst(item, wire, text)
    assert [answer.status for answer in answers] == [200] * 100
    assert 3 <= len(item.notes.retries) <= 20 + 3
    assert item.notes.ejections == 1
    assert item.fleet.replicas["r0"].state(time.monotonic()) == "ejected"
    item.assert_accounted()


async def test_a_replica_that_answers_503_is_ejected_and_probed(harness, engine, wire, eventually) -> None:
    """It refuses all: 100 of 100 are answered elsewhere; after the pause one request probes it and it serves again."""
    broken = True

    async def behave(asked, writer) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n" if broken else wire.ok())

    engines = [await engine(), await engine(), await engine()]
    item = await harness(*engines, retry={"eject_s": 0.3})
    text = "shared prefix " * 100
    await holds_the_prefix(item, engines, wire, text)
    engines[0].behave = behave
    answers = await burst(item, wire, text, at_once=1)
    assert [answer.status for answer in answers] == [200] * 100
    assert item.notes.ejections == 1
    assert item.notes.retries.count("refused") <= 20
    broken = False

    async def back():
        return (await item.ask(wire.post(wire.chat_body(text)))).one("x-warmroute-replica") == "r0"

    await eventually(back, what="the replica is probed and serves again")
    assert item.fleet.replicas["r0"].failures_in_a_row == 0


async def test_a_hung_replica_does_not_hold_others_up(harness, engine, wire) -> None:
    """(RTE-08c) It accepts and never answers: its requests end in time, others and /v1/models are served meanwhile."""

    async def silent(asked, writer) -> None:
        await asyncio.sleep(30)

    engines = [await engine() for _ in range(3)]
    item = await harness(*engines, timeouts={"first_byte_s": 0.5})
    text = "shared prefix " * 100
    await holds_the_prefix(item, engines, wire, text)
    engines[0].behave = silent
    hung = asyncio.ensure_future(burst(item, wire, text))
    begun_s = time.monotonic()
    for number in range(20):
        engine_answer = await item.ask(wire.post(wire.chat_body(f"{number} other prompt " * 50)))
        assert engine_answer.status in (200, 504)
        models = await item.ask(wire.get("/v1/models"))
        assert models.status == 200
    statuses = [answer.status for answer in await hung]
    assert set(statuses) <= {200, 504}
    assert statuses.count(504) <= 20 + 3
    assert time.monotonic() - begun_s < 8
    item.assert_accounted()


async def test_when_all_refuse_the_last_answer_is_the_client_s(harness, engine, wire) -> None:
    """Every replica says 503: each is asked once, and the last one's status, body and Retry-After pass through."""

    def behaving(number):
        async def behave(asked, writer) -> None:
            head = f"HTTP/1.1 503 Busy\r\nretry-after: {number}\r\ncontent-length: 1\r\n\r\n{number}"
            writer.write(head.encode())

        return behave

    engines = [await engine(behaving(number)) for number in (4, 5)]
    item = await harness(*engines)
    answer = await item.ask(wire.post(wire.chat_body()))
    assert [len(one.asked) for one in engines] == [1, 1]
    assert (answer.status, answer.one("retry-after")) == (503, answer.body.decode())
    item.assert_accounted()


async def test_a_stream_that_began_is_never_tried_elsewhere(harness, engine, wire) -> None:
    """A 502 is not a refusal: it may have been generated."""

    async def behave(asked, writer) -> None:
        writer.write(b"HTTP/1.1 502 Bad\r\ncontent-length: 0\r\n\r\n")

    engines = [await engine(behave), await engine(behave)]
    item = await harness(*engines)
    assert (await item.ask(wire.post(wire.chat_body()))).status == 502
    assert sum(len(one.asked) for one in engines) == 1


async def test_a_fleet_that_is_ejected_as_a_whole_is_used_all_the_same(harness, engine, wire) -> None:
    """Leaving everyone alone would only make an outage longer: both refused for a moment, and are back at once."""
    one, two = await engine(), await engine()
    item = await harness(one, two, retry={"eject_after": 1, "eject_s": 60})
    for name in ("r0", "r1"):
        item.fleet.failed(name, time.monotonic(), refused_connection=True)
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200


async def test_a_host_that_no_resolver_takes_is_a_replica_that_cannot_be_reached(harness, engine, wire) -> None:
    """Looking it up raises something else than an OSError: the request goes to the next replica, or gets its 502."""
    one, two = await engine(), await engine()
    item = await harness(one, two, placement={"policy": "round-robin"})
    for replica in item.fleet.replicas.values():
        replica.address = (f"{'a' * 70}.svc", *replica.address[1:])
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code) == (502, "connect_failed")
    assert answer.one("retry-after") == "1"
    assert item.notes.decisions[-1].retries == ["r0"]
    item.assert_accounted()


async def test_a_fault_of_our_own_with_a_new_connection_is_a_500(harness, engine, wire, caplog) -> None:
    """Nobody awaits what connects: without this the request would hang, and its connection stay open."""
    one = await engine()
    item = await harness(one)
    for replica in item.fleet.replicas.values():
        replica.url = None  # what no announcement makes: writing the head fails
    answer = await item.ask(wire.post(wire.chat_body()))
    assert (answer.status, answer.code) == (500, "internal_error")
    assert "internal error while sending" in caplog.text
    assert item.plane.pool.open_count == 0
    item.assert_accounted()
