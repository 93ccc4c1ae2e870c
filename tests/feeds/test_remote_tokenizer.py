"""Asking replicas to tokenise: a real engine process, and servers that are slow, gone or odd."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from router.feeds.remote_tokenizer import ReplicaTokenizer
from router.request.encoders.table import load
from router.request.reader import PromptReader
from router.request.remote import Question, question_for, take_answer

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
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """The address of a server that takes connections and says nothing."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.close()


async def test_the_ids_of_a_chat(engine: str, session: aiohttp.ClientSession, golden: Path) -> None:
    """A chat that has no tokenizer here gets the ids that it would have with one."""
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Grüezi <|im_end|>"}]}).encode()
    prompt = PromptReader(lambda _: None).read(CHAT, body)
    question = question_for(prompt, CHAT, body)
    assert question is not None
    ids = await ReplicaTokenizer(session, timeout_s=10).token_ids(engine, question)
    assert ids is not None
    take_answer(prompt, ids)
    text = load(golden / "tokenizer")
    assert prompt.token_ids == PromptReader(lambda _: text).read(CHAT, body).token_ids


async def test_a_refusal(engine: str, session: aiohttp.ClientSession) -> None:
    """What the engine refuses has no ids."""
    tokenizer = ReplicaTokenizer(session, timeout_s=10)
    assert await tokenizer.token_ids(engine, Question(b'{"model": "other", "prompt": "x"}')) is None
    assert await tokenizer.token_ids(engine, Question(b"no json")) is None


async def test_the_deadline(silent: str, session: aiohttp.ClientSession) -> None:
    """A replica that says nothing is not waited for."""
    async with asyncio.timeout(5):
        assert await ReplicaTokenizer(session, timeout_s=0.05).token_ids(silent, QUESTION) is None


async def test_a_replica_that_is_gone(session: aiohttp.ClientSession) -> None:
    """No connection: no ids."""
    assert await ReplicaTokenizer(session).token_ids("http://127.0.0.1:1", QUESTION) is None


async def test_questions_at_once(silent: str, session: aiohttp.ClientSession) -> None:
    """One more than may be asked at once is not asked, and an ended one makes room."""
    tokenizer = ReplicaTokenizer(session, timeout_s=30, at_once=2)
    asked = [asyncio.ensure_future(tokenizer.token_ids(silent, QUESTION)) for _ in range(2)]
    await asyncio.sleep(0)
    assert tokenizer.asking == 2
    async with asyncio.timeout(5):
        assert await tokenizer.token_ids(silent, QUESTION) is None
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert tokenizer.asking == 0
