"""Tokenizer files in a real Valkey: each once, renewed while an agent lives, read again with the engine's next life."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis as sync_redis

from replica.agent import redis_link, text_files
from replica.agent.command import configure
from replica.agent.settings import AgentSettings, from_args
from replica.agent.text_files import TextFilesError, folder_of
from replica.agent.text_publisher import TextPublisher
from replica.errors import UsageError
from router.kv.keys import Keys
from router.kv.registration import RegisteredModel
from router.kv.text_files import ENGINE_TEMPLATE, ENGINE_VARIABLES

NAMES = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"}


@pytest.fixture
def folder(tmp_path: Path, golden: Path) -> Path:
    """A model's folder: the golden tokenizer, with what no router needs beside it."""
    made = tmp_path / "model"
    shutil.copytree(golden / "tokenizer", made)
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "modeling.py").write_text("import os")
    return made


def settings(redis_url: str, *arguments: str) -> AgentSettings:
    """The settings of an agent with quick leases."""
    parser = argparse.ArgumentParser()
    configure(parser)
    given = ("--engine-url", "http://127.0.0.1:8000", "--redis", redis_url, "--lease-s", "0.4", *arguments)
    return from_args(parser.parse_args(given), {})


@pytest.fixture
async def publish(redis_url: str) -> AsyncIterator[Callable[..., TextPublisher]]:
    """`publish("--tokenizer", DIR, models=[...])`: a publisher in operation."""
    running: list[tuple[TextPublisher, asyncio.Task[None], Any]] = []

    def start(*arguments: str, models: tuple[RegisteredModel, ...] = ()) -> TextPublisher:
        client = redis_link.connect(redis_url)
        one = TextPublisher(settings(redis_url, *arguments), client)
        one.look(models, (1,))
        running.append((one, asyncio.create_task(one.run()), client))
        return one

    yield start
    for one, task, client in running:
        one.end()
        await task
        await client.close()


@pytest.fixture
def redis(redis_url: str):  # type: ignore[no-untyped-def]
    """A client that looks."""
    with sync_redis.Redis.from_url(redis_url) as client:
        yield client


def content(redis: sync_redis.Redis, digest: str) -> bytes:
    return b"".join(redis.lrange(Keys().text_file(digest), 0, -1))


async def test_every_file_lies_under_its_hash(
    publish: Callable[..., TextPublisher], folder: Path, redis: sync_redis.Redis, eventually: Any
) -> None:
    """What a router needs and nothing else, byte for byte, in chunks of at most 128 KiB."""
    one = publish("--tokenizer", str(folder))
    await eventually(lambda: one.files)
    assert set(one.files) == NAMES
    for name, digest in one.files.items():
        data = (folder / name).read_bytes()
        assert digest == hashlib.sha256(data).hexdigest()
        assert content(redis, digest) == data
        assert max(map(len, redis.lrange(Keys().text_file(digest), 0, -1))) <= 128 * 1024
    assert redis.dbsize() == len(one.files)


async def test_agents_share_the_files_and_they_vanish_with_the_last(
    publish: Callable[..., TextPublisher], folder: Path, redis: sync_redis.Redis, eventually: Any
) -> None:
    """Two that write at once leave one copy; it outlives the first agent, and not the second."""
    first, second = publish("--tokenizer", str(folder)), publish("--tokenizer", str(folder))
    await eventually(lambda: first.files and second.files)
    digest = first.files["tokenizer.json"]
    assert content(redis, digest) == (folder / "tokenizer.json").read_bytes()
    first.end()
    seen: list[int] = []

    def is_renewed() -> bool:
        seen.append(redis.pttl(Keys().text_file(digest)))
        return seen[-1] > seen[max(0, len(seen) - 2)]

    await eventually(is_renewed)
    assert all(0 < left_ms <= 1600 for left_ms in seen)
    second.end()
    await eventually(lambda: redis.dbsize() == 0)


async def test_a_redis_that_was_emptied_gets_them_again(
    publish: Callable[..., TextPublisher], folder: Path, redis: sync_redis.Redis, eventually: Any
) -> None:
    """Within a renewal."""
    one = publish("--tokenizer", str(folder))
    await eventually(lambda: one.files)
    redis.flushall()
    await eventually(lambda: redis.exists(Keys().text_file(one.files["tokenizer.json"])))


async def test_a_new_life_of_the_engine_may_have_another_template(
    publish: Callable[..., TextPublisher], folder: Path, redis: sync_redis.Redis, tmp_path: Path, eventually: Any
) -> None:
    """It is not read before: the running engine has the one that it came up with."""
    template = tmp_path / "own.jinja"
    template.write_text("one")
    one = publish("--tokenizer", str(folder), "--chat-template", str(template))
    await eventually(lambda: one.files)
    digests = [hashlib.sha256(text).hexdigest() for text in (b"one", b"two")]
    assert one.files[ENGINE_TEMPLATE] == digests[0]
    template.write_text("two")
    one.look((), (1,))
    assert one.files[ENGINE_TEMPLATE] == digests[0]
    one.look((), (2,))
    await eventually(lambda: one.files[ENGINE_TEMPLATE] == digests[1])
    assert content(redis, digests[1]) == b"two"


async def test_the_models_root_is_published_where_it_is_a_folder_here(
    publish: Callable[..., TextPublisher], folder: Path, eventually: Any
) -> None:
    """Without an option; an adapter's path is not looked at."""
    models = (RegisteredModel("sql", "/nowhere", "tiny"), RegisteredModel("tiny", str(folder)))
    one = publish(models=models)
    await eventually(lambda: "tokenizer.json" in one.files)


def test_a_hubs_name_is_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even where the agent runs beside a folder of that name; nor is a folder without a tokenizer."""
    (tmp_path / "owner").mkdir()
    shutil.copytree(folder, tmp_path / "owner/model")
    monkeypatch.chdir(tmp_path)
    assert folder_of([RegisteredModel("tiny", "owner/model")]) is None
    assert folder_of([RegisteredModel("tiny", str(tmp_path))]) is None
    assert folder_of([RegisteredModel("tiny", "/" + "x" * 4000)]) is None
    assert folder_of([RegisteredModel("tiny", str(folder))]) == folder


def test_sizes_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, and all together: refused with a reason."""
    size = (folder / "tokenizer.json").stat().st_size
    monkeypatch.setattr(text_files, "MAX_TOGETHER_BYTES", size)
    with pytest.raises(TextFilesError, match="more than"):
        text_files.read(folder, None)
    monkeypatch.setattr(text_files, "MAX_FILE_BYTES", size - 1)
    with pytest.raises(TextFilesError, match=r"tokenizer\.json has more than"):
        text_files.read(folder, None)


async def test_nothing_is_published_where_it_is_switched_off(
    publish: Callable[..., TextPublisher], folder: Path, redis: sync_redis.Redis
) -> None:
    """With --no-publish-tokenizer a folder of the model is left alone: there is nothing to wait for."""
    models = (RegisteredModel("tiny", str(folder)),)
    client = redis_link.connect("redis://127.0.0.1:1")
    one = TextPublisher(settings("redis://127.0.0.1:1", "--no-publish-tokenizer"), client)
    one.look(models, (1,))
    async with asyncio.timeout(5):
        await one.run()
    assert one.files == {}
    await client.close()


def test_options_that_can_not_be_are_told(folder: Path) -> None:
    """Each with its remedy: no folder, no file, and both told and forbidden."""
    with pytest.raises(UsageError) as raised:
        settings("redis://h", "--tokenizer", "/no/folder", "--chat-template", "/no/file", "--no-publish-tokenizer")
    assert [problem.split(":")[0] for problem in raised.value.problems] == [
        "--tokenizer",
        "--chat-template",
        "--no-publish-tokenizer",
    ]


def test_an_engine_that_the_agent_starts_tells_by_its_own_options(folder: Path) -> None:
    """Its template and tokenizer are published; where they are not here, nothing is: the model's own would be wrong."""
    template = folder / "chat_template.jinja"
    template.write_text("x")
    command = ("--", "vllm", "serve", "tiny", f"--tokenizer={folder}", "--chat-template", str(template))
    given = settings("redis://h", *command)
    assert (given.tokenizer, given.chat_template, given.publishes_tokenizer) == (folder, template, True)
    assert not settings("redis://h", "--", "vllm", "--chat-template={{ messages }}").publishes_tokenizer
    assert not settings("redis://h", "--", "vllm", "--tokenizer", "owner/name").publishes_tokenizer


async def test_the_engines_variables_are_published_with_its_tokenizer(
    publish: Callable[..., TextPublisher], folder: Path, redis: sync_redis.Redis, eventually: Any
) -> None:
    """As a file of its own, listed with the others; none where the engine has none."""
    one = publish("--tokenizer", str(folder), "--default-chat-template-kwargs", '{"b": true, "a": "ä"}')
    one.look((), (1,))
    await eventually(lambda: one.files)
    assert set(one.files) == {*NAMES, ENGINE_VARIABLES}
    assert json.loads(content(redis, one.files[ENGINE_VARIABLES])) == {"b": True, "a": "ä"}


@pytest.mark.parametrize(
    "command",
    [
        ("--default-chat-template-kwargs", '{"a": {"b": 1}}'),
        ('--default_chat_template_kwargs={"a": {"b": 1}}',),
        ("--default-chat-template-kwargs.a.b", "1"),
    ],
)
def test_an_engine_that_the_agent_starts_tells_its_variables(command: tuple[str, ...]) -> None:
    """However they are spelled. The agent's own option goes before; with what can't be read nothing is published."""
    assert settings("redis://h", "--", "vllm", *command).chat_template_kwargs == {"a": {"b": 1}}
    given = settings("redis://h", "--default-chat-template-kwargs={}", "--", "vllm", *command)
    assert given.chat_template_kwargs == {}
    assert given.publishes_tokenizer
    assert not settings("redis://h", "--", "vllm", "--default-chat-template-kwargs={").publishes_tokenizer


@pytest.mark.parametrize("value", ["{", "[]", "1"])
def test_variables_that_are_no_object_are_told(value: str) -> None:
    """With what would be right."""
    with pytest.raises(UsageError, match="--default-chat-template-kwargs: is no JSON object"):
        settings("redis://h", "--default-chat-template-kwargs", value)
