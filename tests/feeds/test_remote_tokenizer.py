"""Asking replicas to tokenise: a simulated engine's process, and servers that are gone or odd."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from router.feeds.remote_tokenizer import ReplicaTokenizer, open_session
from router.request.encoders.table import load
from router.request.reader import PromptReader
from router.request.reasons import NotUnderstoodError, Reason
from router.request.remote import Question, ids_in, question_for, take_answer

CHAT = "/v1/chat/completions"
QUESTION = Question(b'{"prompt": "x"}')


@pytest.fixture(scope="module")
def engine(golden: Path) -> Iterator[str]:
    """The address of a simulated engine."""
    command = [sys.executable, "-m", "router.cli", "simengine", "--port", "0", "--events-port", "0"]
    options = ["--replay-port", "0", "--model", "tiny", "--tokenizer", str(golden / "tokenizer")]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["http"]
        process.terminate()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session for one test."""
    async with open_session(4) as session:
        yield session


async def test_the_ids_of_a_chat(engine: str, session: aiohttp.ClientSession, golden: Path) -> None:
    """A chat that has no tokenizer here gets the ids that it would have with one."""
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Grüezi <|im_end|>"}]}).encode()
    prompt = PromptReader(lambda _: None).read(CHAT, body)
    question = question_for(prompt, CHAT, body)
    assert question is not None
    ids = ids_in(await ReplicaTokenizer(session).ask(engine, question))
    assert ids is not None
    take_answer(prompt, ids)
    text = load(golden / "tokenizer")
    assert prompt.token_ids == PromptReader(lambda _: text).read(CHAT, body).token_ids


async def test_a_refusal(engine: str, session: aiohttp.ClientSession) -> None:
    """What the engine refuses has no ids, and that is told apart from an engine that is gone."""
    for body in (b'{"model": "other", "prompt": "x"}', b"no json"):
        with pytest.raises(NotUnderstoodError) as caught:
            await ReplicaTokenizer(session).ask(engine, Question(body))
        assert caught.value.reason is Reason.REMOTE_REFUSED


async def test_a_replica_that_is_gone(session: aiohttp.ClientSession) -> None:
    """No connection: no ids."""
    with pytest.raises(NotUnderstoodError) as caught:
        await ReplicaTokenizer(session).ask("http://127.0.0.1:1", QUESTION)
    assert caught.value.reason is Reason.REMOTE_FAILED


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 99],
    ids=["nothing", "broken off", "nonsense", "without end"],
)
async def test_an_answer_that_is_none(
    answer: bytes, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a server does instead of answering, there is one reason for it."""
    monkeypatch.setattr("router.feeds.remote_tokenizer.MAX_ANSWER_BYTES", 50)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(NotUnderstoodError) as caught:
            await ReplicaTokenizer(session).ask(f"http://{host}:{port}", QUESTION)
    assert caught.value.reason is Reason.REMOTE_FAILED


async def test_a_question_that_is_cancelled_leaves_no_connection(session: aiohttp.ClientSession) -> None:
    """Whoever asks sets the deadline; the replica sees that nobody waits."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        task = asyncio.ensure_future(ReplicaTokenizer(session).ask(f"http://{host}:{port}", QUESTION))
        async with asyncio.timeout(5):
            await asked.wait()
            task.cancel()
            await left.wait()
