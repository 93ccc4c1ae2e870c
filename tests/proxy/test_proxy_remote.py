"""Models without a tokenizer in the router: a replica is asked, and never for longer or more often than agreed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.feeds.remote_tokenizer import ReplicaTokenizer, open_session
from router.fleet.facts import ServedModel
from router.request.reader import PromptReader
from router.request.reasons import Reason

IDS = list(range(1_000, 1_100))
COMPLETIONS = "/v1/completions"


@pytest.fixture
async def remote() -> AsyncIterator[ReplicaTokenizer]:
    """What asks replicas."""
    async with open_session(4) as session:
        yield ReplicaTokenizer(session)


def tokenizing(wire: Any, ids: list[int] = IDS, until: asyncio.Event | None = None, answer: bytes | None = None) -> Any:
    """An engine that answers these ids, or `answer`, to /tokenize once `until` is set; 200 to all else."""

    async def behave(asked: Any, writer: asyncio.StreamWriter) -> None:
        if not asked.line.startswith("POST /tokenize "):
            writer.write(wire.ok())
            return
        if until is not None:
            await until.wait()
        writer.write(wire.ok(json.dumps({"count": len(ids), "tokens": ids}).encode()) if answer is None else answer)

    return behave


def without_tokenizer(item: Any) -> Any:
    """Let the harness read bodies as a router that has no tokenizer at all."""
    item.reader.read = PromptReader(lambda _: None).read
    return item


def reasons(item: Any) -> list[str | None]:
    return [decision.prompt_reason for decision in item.notes.decisions]


def questions(engine: Any) -> list[Any]:
    return [json.loads(asked.body) for asked in engine.asked if "/tokenize" in asked.line]


@pytest.mark.parametrize("inline_body_bytes", [0, 4_096], ids=["in threads", "on the loop"])
async def test_the_prompt_is_placed_by_the_ids_that_a_replica_answers(
    harness: Any, engine: Any, wire: Any, remote: Any, inline_body_bytes: int
) -> None:
    """The second of two equal chats is predicted to its last whole block, at the replica of the first."""
    ids = list(range(5_000))
    engines = [await engine(tokenizing(wire, ids)) for _ in range(3)]
    limits = {"inline_body_bytes": inline_body_bytes, "remote_tokenize_deadline_ms": 10_000}
    item = without_tokenizer(await harness(*engines, remote=remote, limits=limits))
    first, second = [await item.ask(wire.post(wire.chat_body("same"))) for _ in range(2)]
    assert second.one("x-warmroute-replica") == first.one("x-warmroute-replica")
    assert (first.one("x-warmroute-matched-tokens"), second.one("x-warmroute-matched-tokens")) == ("0", "4992")
    assert reasons(item) == [None, None]
    assert [decision.prompt_tokens for decision in item.notes.decisions] == [5_000, 5_000]
    assert item.notes.remote == ["answered", "answered"]
    item.assert_accounted()


async def test_every_ready_replica_of_the_model_is_asked_in_its_turn(
    harness: Any, engine: Any, wire: Any, remote: Any
) -> None:
    """Neither those of another model nor those that are down."""
    one, two, other, down = [await engine(tokenizing(wire)) for _ in range(4)]
    item = without_tokenizer(await harness(one, two, remote=remote))
    item.announce(other, "other", models=("another",))
    item.announce(down, "down")
    item.fleet.mark_down("down", "test")
    for _ in range(4):
        await item.ask(wire.post(wire.chat_body()))
    assert [len(questions(each)) for each in (one, two, other, down)] == [2, 2, 0, 0]


async def test_a_replica_that_hangs_costs_the_deadline_and_no_more(
    harness: Any, engine: Any, wire: Any, remote: Any, eventually: Any
) -> None:
    """The request is placed by load and counted, and the replica's connection is let go."""
    hanging = await engine(tokenizing(wire, until=asyncio.Event()))
    item = without_tokenizer(await harness(hanging, remote=remote, limits={"remote_tokenize_deadline_ms": 50}))
    begun_s = time.monotonic()
    answer = await item.ask(wire.post(wire.chat_body()))
    took_s = time.monotonic() - begun_s
    assert answer.status == 200
    assert 0.05 <= took_s < 1
    assert (reasons(item), item.notes.remote) == ([Reason.REMOTE_DEADLINE], ["deadline"])
    await eventually(lambda: hanging.open == 1)  # the one that served the request itself


async def test_no_more_are_asked_at_once_than_agreed(
    harness: Any, engine: Any, wire: Any, remote: Any, eventually: Any
) -> None:
    """One more is answered meanwhile, placed by load; an answer makes room."""
    go = asyncio.Event()
    one = await engine(tokenizing(wire, until=go))
    limits = {"remote_tokenize_requests": 2, "remote_tokenize_deadline_ms": 10_000}
    item = without_tokenizer(await harness(one, remote=remote, limits=limits))
    clients = [await item.client() for _ in range(2)]
    for client in clients:
        client.send(wire.post(wire.chat_body()))
    await eventually(lambda: len(questions(one)) == 2)
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200
    assert (reasons(item), item.notes.remote) == ([Reason.REMOTE_BUSY], ["busy"])
    go.set()
    assert [(await client.answer()).status for client in clients] == [200, 200]
    await item.ask(wire.post(wire.chat_body()))
    assert reasons(item)[1:] == [None, None, None]
    item.assert_accounted()


@pytest.mark.parametrize(
    ("answer", "reason", "result"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", Reason.REMOTE_REFUSED, "refused"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Reason.REMOTE_FAILED, "failed"),
        (b"nonsense\r\n\r\n", Reason.REMOTE_FAILED, "failed"),
    ],
    ids=["refused", "no ids", "nonsense"],
)
async def test_no_request_fails_for_a_bad_answer(
    harness: Any, engine: Any, wire: Any, remote: Any, answer: bytes, reason: Reason, result: str
) -> None:
    """It is placed by load, and the reason is told and counted."""
    one = await engine(tokenizing(wire, answer=answer))
    item = without_tokenizer(await harness(one, remote=remote, limits={"remote_tokenize_deadline_ms": 10_000}))
    assert (await item.ask(wire.post(wire.chat_body()))).status == 200
    assert (reasons(item), item.notes.remote) == ([reason], [result])


async def test_a_client_that_leaves_takes_its_question_along(
    harness: Any, engine: Any, wire: Any, remote: Any, eventually: Any
) -> None:
    """Nothing is placed, and there is room for another."""
    one = await engine(tokenizing(wire, until=asyncio.Event()))
    item = without_tokenizer(await harness(one, remote=remote, limits={"remote_tokenize_deadline_ms": 60_000}))
    client = await item.client()
    client.send(wire.post(wire.chat_body()))
    await eventually(lambda: len(questions(one)) == 1)
    client.reset()
    await eventually(lambda: item.notes.outcomes)
    await eventually(lambda: one.open == 0 and item.plane.forwarder.prompts.remote.asking == 0)
    assert item.notes.last.aborted
    assert (item.notes.decisions, item.notes.remote) == ([], [])
    item.assert_accounted()


async def test_with_a_tokenizer_no_replica_is_asked(harness: Any, engine: Any, wire: Any, remote: Any) -> None:
    """Nor where the bound is 0."""
    one = await engine(tokenizing(wire))
    item = await harness(one, remote=remote)
    await item.ask(wire.post(wire.chat_body()))
    item = without_tokenizer(await harness(one, remote=remote, limits={"remote_tokenize_requests": 0}))
    await item.ask(wire.post(wire.chat_body()))
    assert reasons(item) == [Reason.NO_TOKENIZER]
    assert questions(one) == []


async def test_what_tokenize_can_not_tell_is_not_asked(harness: Any, engine: Any, wire: Any, remote: Any) -> None:
    """A prompt of embeddings, short or long."""
    one = await engine(tokenizing(wire))
    for limit in (0, 4_096):
        item = without_tokenizer(await harness(one, remote=remote, limits={"inline_body_bytes": limit}))
        body = json.dumps({"model": "tiny", "prompt": "x", "truncate_prompt_tokens": 5}).encode()
        assert (await item.ask(wire.post(body, COMPLETIONS))).status == 200
        assert (reasons(item), item.notes.remote) == ([Reason.NO_TOKENIZER], [])
    assert questions(one) == []


TEMPLATED = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(TEMPLATED).encode(),
        json.dumps(TEMPLATED).replace("chat_template", "chat\\u005ftemplate").encode(),
        json.dumps(TEMPLATED).encode("utf-16"),
    ],
    ids=["plain", "escaped", "UTF-16"],
)
async def test_a_template_that_the_client_brings_is_never_rendered_on_the_loop(
    harness: Any, engine: Any, wire: Any, body: bytes
) -> None:
    """However short the body, and however the key is spelled; other bodies, and other routers, read it at once."""
    threads: list[bool] = []

    def reading(item: Any) -> None:
        read = item.reader.read

        def noted(*args: Any) -> Any:
            threads.append(threading.current_thread() is not threading.main_thread())
            return read(*args)

        item.reader.read = noted

    one = await engine()
    allowing = await harness(one, models=[{"name": "other"}, {"name": "tiny", "allow_client_template": True}])
    reading(allowing)
    assert (await allowing.ask(wire.post(body))).status == 200
    assert (await allowing.ask(wire.post(wire.chat_body()))).status == 200
    refusing = await harness(one)
    reading(refusing)
    assert (await refusing.ask(wire.post(body))).status == 200
    assert threads == [True, False, False]


PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": "p-1"}]}
PICTURED = json.dumps({"model": "tiny", "messages": [PICTURE], "max_tokens": 1}).encode()


def rendering(wire: Any, status: int = 200) -> Any:
    """An engine that renders prompts of 100 tokens, of which 60 are a picture, or answers another status to that."""

    async def behave(asked: Any, writer: asyncio.StreamWriter) -> None:
        if not asked.line.startswith("POST /v1/chat/completions/render "):
            writer.write(wire.ok())
        elif status != 200:
            writer.write(f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n".encode())
        else:
            places = {"image": [{"offset": 20, "length": 60}]}
            features = {"mm_hashes": {"image": ["p-1"]}, "mm_placeholders": places}
            writer.write(wire.ok(json.dumps({"token_ids": IDS, "features": features}).encode()))

    return behave


def renderings(engine: Any) -> list[Any]:
    return [json.loads(asked.body) for asked in engine.asked if "/render" in asked.line]


@pytest.mark.parametrize("inline_body_bytes", [0, 4_096], ids=["in threads", "on the loop"])
async def test_media_are_placed_by_the_engines_rendering(
    harness: Any, engine: Any, wire: Any, remote: Any, inline_body_bytes: int
) -> None:
    """The second of two equal chats with a picture is predicted to its last whole block; the picture is hashed."""
    engines = [await engine(rendering(wire)) for _ in range(3)]
    limits = {"inline_body_bytes": inline_body_bytes, "remote_tokenize_deadline_ms": 10_000}
    item = without_tokenizer(await harness(*engines, remote=remote, limits=limits))
    first, second = [await item.ask(wire.post(PICTURED)) for _ in range(2)]
    assert second.one("x-warmroute-replica") == first.one("x-warmroute-replica")
    assert (first.one("x-warmroute-matched-tokens"), second.one("x-warmroute-matched-tokens")) == ("0", "96")
    assert (reasons(item), item.notes.remote) == ([None, None], ["answered", "answered"])
    other = json.dumps({"model": "tiny", "prompt": IDS, "max_tokens": 1}).encode()
    assert (await item.ask(wire.post(other, COMPLETIONS))).one("x-warmroute-matched-tokens") == "16"
    item.assert_accounted()


@pytest.mark.parametrize("status", [404, 405])
async def test_a_replica_that_does_not_render_is_left_alone(
    harness: Any, engine: Any, wire: Any, remote: Any, status: int
) -> None:
    """It is asked once, then for a minute no more: what stands before the media is known, and that is counted."""
    one = await engine(rendering(wire, status))
    item = await harness(one, remote=remote, limits={"remote_tokenize_deadline_ms": 10_000})
    item.reader.read = lambda *args: known_to_the_picture()
    for _ in range(3):
        assert (await item.ask(wire.post(PICTURED))).status == 200
    assert len(renderings(one)) == 1
    assert (reasons(item), item.notes.remote) == ([Reason.MEDIA] * 3, ["refused"])
    assert [decision.matched_tokens for decision in item.notes.decisions] == [0, 32, 32]


def known_to_the_picture() -> Any:
    """A prompt as the reader has it of which 40 tokens stand before the first medium."""
    prompt = PromptReader(lambda _: None).facts("/v1/chat/completions", PICTURED)
    prompt.token_ids, prompt.tokens, prompt.reason = IDS[:40], 500, Reason.MEDIA
    return prompt


async def test_a_rendering_that_comes_too_late_leaves_what_is_known(
    harness: Any, engine: Any, wire: Any, remote: Any
) -> None:
    """The deadline is counted, and the request placed by the tokens before the media."""

    async def hang(asked: Any, writer: asyncio.StreamWriter) -> None:
        if "/render" in asked.line:
            await asyncio.Event().wait()
        writer.write(wire.ok())

    one = await engine(hang)
    item = await harness(one, remote=remote, limits={"remote_tokenize_deadline_ms": 50})
    item.reader.read = lambda *args: known_to_the_picture()
    for _ in range(2):
        assert (await item.ask(wire.post(PICTURED))).status == 200
    assert (reasons(item), item.notes.remote) == ([Reason.MEDIA] * 2, ["deadline"] * 2)
    assert [decision.matched_tokens for decision in item.notes.decisions] == [0, 32]


async def test_engines_that_load_a_model_from_several_paths_are_not_asked_about_media(
    harness: Any, engine: Any, wire: Any, remote: Any
) -> None:
    """The path is part of a picture's identifier: what one answers would not hold at the other."""
    one, two = [await engine(rendering(wire)) for _ in range(2)]
    item = without_tokenizer(await harness(one, remote=remote, limits={"remote_tokenize_deadline_ms": 10_000}))
    item.announce(two, "two")
    item.fleet.replicas["two"].models["tiny"] = ServedModel("tiny", "/elsewhere/tiny")
    assert (await item.ask(wire.post(PICTURED))).status == 200
    assert renderings(one) == renderings(two) == []
    assert reasons(item) == [Reason.NO_TOKENIZER]


async def test_a_request_without_a_model_is_asked_about_where_one_alone_is_served(
    harness: Any, engine: Any, wire: Any, remote: Any
) -> None:
    """It is for that model, under whichever name; with two models nobody can know."""
    one = await engine(tokenizing(wire))
    item = without_tokenizer(await harness(one, remote=remote, limits={"remote_tokenize_deadline_ms": 10_000}))
    await item.ask(wire.post(wire.chat_body(model=None)))
    assert (reasons(item), item.notes.remote) == ([None], ["answered"])
    item.fleet.replicas["r0"].models["more"] = ServedModel("more", "/models/tiny")
    assert item.fleet.sole_model() == "tiny"
    item.fleet.replicas["r0"].models["more"] = ServedModel("more", "/models/more")
    await item.ask(wire.post(wire.chat_body(model=None)))
    assert (reasons(item), item.notes.remote) == ([None, Reason.NO_MODEL], ["answered"])


@pytest.mark.parametrize("inline_body_bytes", [0, 4_096], ids=["in threads", "on the loop"])
async def test_chats_that_the_engine_encodes_by_itself_are_never_taken_from_tokenize(
    harness: Any, engine: Any, wire: Any, remote: Any, inline_body_bytes: int
) -> None:
    """gpt-oss: `/tokenize` gives other ids than the chat gets. Its plain completions are as those of any model."""
    one = await engine(tokenizing(wire))
    limits = {"inline_body_bytes": inline_body_bytes, "remote_tokenize_deadline_ms": 10_000}
    item = without_tokenizer(await harness(one, remote=remote, limits=limits))
    item.fleet.replicas["r0"].models["tiny"] = ServedModel("tiny", "/models/openai/gpt-oss-20b")
    await item.ask(wire.post(wire.chat_body()))
    assert questions(one) == []
    assert reasons(item) != [None]
    await item.ask(wire.post(json.dumps({"model": "tiny", "prompt": "x"}).encode(), COMPLETIONS))
    assert len(questions(one)) == 1
    assert reasons(item)[1] is None
