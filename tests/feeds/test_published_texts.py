"""Tokenizers from agents: taken over by hash, replaced as they are replaced there, refused when they are not what they
are said to be."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from router.feeds import published_texts
from router.kv.keys import Keys
from router.kv.text_files import ENGINE_TEMPLATE, ENGINE_VARIABLES
from router.request.encoders.table import load
from router.request.isolated_chat import IsolatedChat

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, wie geht's?"}]}
SECRET = "0123456789abcdef"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds and second tries come soon: what is waited for is their number."""
    monkeypatch.setattr(published_texts, "ROUND_S", 0.02)
    monkeypatch.setattr(published_texts, "WRONG_RETRY_S", 0.1)


@pytest.fixture
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory that nobody else writes to."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left_in(folder: Path) -> list[Path]:
    """What is in a folder."""
    return list(folder.iterdir())


@pytest.fixture
def put(redis: Redis, golden: Path) -> Callable[..., Any]:
    """`await put(more={name: bytes})`: the golden tokenizer's files in Redis; name to hash, as a lease lists them."""

    async def write(more: dict[str, bytes] | None = None, lies: tuple[str, ...] = ()) -> dict[str, str]:
        names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
        files = {name: (golden / "tokenizer" / name).read_bytes() for name in names} | (more or {})
        listed = {}
        for name, data in files.items():
            listed[name] = hashlib.sha256(data).hexdigest()
            written = data[:-1] + b"X" if name in lies else data
            key = Keys().text_file(listed[name])
            await redis.delete(key)
            for start in range(0, len(written), 100_000):
                await redis.rpush(key, written[start : start + 100_000])
        return listed

    return write


def ids(running: Any) -> list[int]:
    """The golden chat's tokens by what the router has now."""
    tokens: list[int] = running.texts.by_name["tiny"].chat(CHAT, add_special_tokens=False).ids
    return tokens


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_a_chat_has_the_tokens_that_the_agents_folder_gives(
    redis_url: str,
    writer: Any,
    run_feeds: Any,
    put: Any,
    golden: Path,
    eventually: Any,
    own_temporary: Path,
    secret: str | None,
) -> None:
    """Byte for byte, signed or not; unsigned templates run in a process apart; nothing is left in the file system."""
    unit = writer("r0/0", secret=secret and secret.encode())
    await unit.register(text_files=await put())
    running = run_feeds(redis=redis_url, registration={"secret": secret} if secret else {})
    await eventually(lambda: "tiny" in running.texts.by_name)
    assert ids(running) == load(golden / "tokenizer").chat(CHAT, add_special_tokens=False).ids
    assert running.texts.origins["tiny"].source == "agent"
    assert isinstance(running.texts.by_name["tiny"]._chat, IsolatedChat) is (secret is None)
    assert left_in(own_temporary) == []


async def test_wrong_bytes_under_a_hash_are_refused_until_they_are_right(
    redis_url: str, writer: Any, run_feeds: Any, put: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; the right ones are taken when they are there."""
    unit = writer("r0/0")
    await unit.register(text_files=await put(lies=("chat_template.jinja",)))
    running = run_feeds(redis=redis_url)
    with caplog.at_level(logging.WARNING):
        await eventually(lambda: "chat_template.jinja in Redis is not what its hash says" in caplog.text)
    assert running.texts.by_name == {}
    await put()
    await eventually(lambda: "tiny" in running.texts.by_name)
    assert caplog.text.count("is not what its hash says") == 1


async def test_another_template_replaces_the_first_and_may_come_back(
    redis_url: str, writer: Any, run_feeds: Any, put: Any, eventually: Any
) -> None:
    """The engine's own goes before the model's; the tokens are those of the newest registration."""
    unit = writer("r0/0", secret=SECRET.encode())
    plain = await put()
    await unit.register(text_files=plain)
    running = run_feeds(redis=redis_url, registration={"secret": SECRET})
    await eventually(lambda: "tiny" in running.texts.by_name)
    first, text = ids(running), running.texts.by_name["tiny"]
    own = await put({ENGINE_TEMPLATE: b"{% for m in messages %}<{{ m.content }}>{% endfor %}"})
    await unit.lease(text_files=own)
    await eventually(lambda: running.texts.by_name["tiny"] is not text)
    assert running.texts.by_name["tiny"].render_chat(CHAT) == "<Be brief.><Grüße, wie geht's?>"
    await unit.lease(text_files=plain)
    await eventually(lambda: running.texts.by_name["tiny"] is text)
    assert ids(running) == first


@pytest.mark.parametrize(
    ("configured", "expected"), [({}, "Be brief.-yes-"), ({"mood": "own"}, "Be brief.-own-")], ids=["none", "some"]
)
@pytest.mark.parametrize("secret", [None, SECRET], ids=["unsigned", "signed"])
async def test_the_engines_variables_come_with_its_template(
    redis_url: str,
    writer: Any,
    run_feeds: Any,
    put: Any,
    eventually: Any,
    secret: str | None,
    configured: dict[str, Any],
    expected: str,
) -> None:
    """Chats are rendered with them, unless the configuration has variables of its own."""
    template = b"{{ messages[0].content }}-{{ mood }}-"
    files = await put({ENGINE_TEMPLATE: template, ENGINE_VARIABLES: b'{"mood": "yes"}'})
    unit = writer("r0/0", secret=secret and secret.encode())
    await unit.register(text_files=files)
    models = [{"name": "tiny", "chat_template_kwargs": configured}]
    running = run_feeds(redis=redis_url, models=models, registration={"secret": secret} if secret else {})
    await eventually(lambda: "tiny" in running.texts.by_name)
    assert running.texts.by_name["tiny"].render_chat(CHAT) == expected


@pytest.mark.parametrize("variables", [b"{", b"[1]", b"\xff"])
async def test_variables_that_are_no_object_are_refused(
    redis_url: str,
    writer: Any,
    run_feeds: Any,
    put: Any,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
    variables: bytes,
) -> None:
    """With all that was published beside them: half of it would render another prompt."""
    await writer("r0/0").register(text_files=await put({ENGINE_VARIABLES: variables}))
    with caplog.at_level(logging.WARNING):
        running = run_feeds(redis=redis_url)
        await eventually(lambda: f"{ENGINE_VARIABLES} is no JSON object" in caplog.text)
    assert running.texts.by_name == {}


async def test_most_replicas_decide_in_a_rollout(
    redis_url: str, writer: Any, run_feeds: Any, put: Any, eventually: Any
) -> None:
    """One of three with another template changes nothing; two do."""
    plain, own = await put(), await put({ENGINE_TEMPLATE: b"x"})
    units = [writer(f"r{n}/0", epoch=n + 1) for n in range(3)]
    for n, unit in enumerate(units):
        await unit.register(url=f"http://127.0.0.1:{n + 1}", text_files=own if n == 2 else plain)
    running = run_feeds(redis=redis_url)
    await eventually(lambda: "tiny" in running.texts.by_name and len(running.fleet.replicas) == 3)
    text = running.texts.by_name["tiny"]
    assert text.render_chat(CHAT) != "x"
    await units[0].lease(url="http://127.0.0.1:1", text_files=own)
    await eventually(lambda: running.texts.by_name["tiny"].render_chat(CHAT) == "x")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("tokenizer.json", b"{}", "tokenizer.json can't be read"),
        ("tokenizer_config.json", b"[", "tokenizer_config.json can't be read"),
        (ENGINE_TEMPLATE, b"{% for %}", "a chat template can't be used: template_error"),
        (ENGINE_TEMPLATE, b"x" * 2**17, "a chat template can't be used: too_long"),
    ],
)
async def test_a_set_that_can_not_be_used_is_told_of_once(
    redis_url: str,
    writer: Any,
    run_feeds: Any,
    put: Any,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
    name: str,
    data: bytes,
    reason: str,
) -> None:
    """With the reason; the model stays without, so that its replicas are asked, and a good set that follows is used."""
    unit = writer("r0/0")
    good = await put()
    await unit.register(text_files=good)
    running = run_feeds(redis=redis_url)
    await eventually(lambda: "tiny" in running.texts.by_name)
    with caplog.at_level(logging.WARNING):
        await unit.lease(text_files=await put({name: data}))
        await eventually(lambda: reason in caplog.text)
    assert "warmroute-text-" not in caplog.text
    assert running.texts.by_name == {}
    await unit.lease(text_files=good)
    await eventually(lambda: "tiny" in running.texts.by_name)
    assert caplog.text.count("can't be used, replicas are asked") == 1


async def test_replicas_that_publish_none_are_asked(
    redis_url: str, writer: Any, run_feeds: Any, put: Any, eventually: Any
) -> None:
    """As those of an earlier agent: the model is served, without a text; also after one that published."""
    unit = writer("r0/0")
    await unit.register()
    running = run_feeds(redis=redis_url)
    await eventually(lambda: running.fleet.replicas)
    assert running.texts.by_name == {}
    await unit.lease(text_files=await put())
    await eventually(lambda: "tiny" in running.texts.by_name)
    await unit.lease()
    await eventually(lambda: running.texts.by_name == {} == running.texts.origins)


async def test_names_that_are_no_tokenizer_files_are_left_alone(
    redis_url: str, writer: Any, run_feeds: Any, put: Any, eventually: Any, own_temporary: Path, tmp_path: Path
) -> None:
    """A path out of the folder is never written; the files that are known are used."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    listed = await put({"../escaped.json": b"{}", f"{elsewhere}/escaped": b"{}", "newer.kind": b"{}"})
    await writer("r0/0").register(text_files=listed)
    running = run_feeds(redis=redis_url)
    await eventually(lambda: "tiny" in running.texts.by_name)
    assert left_in(own_temporary) == left_in(elsewhere) == []


async def test_more_than_is_kept_is_refused(
    redis_url: str,
    writer: Any,
    run_feeds: Any,
    put: Any,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound is on all sets together."""
    listed = await put()
    monkeypatch.setattr(published_texts, "MAX_KEPT_BYTES", 100_000)
    await writer("r0/0").register(text_files=listed)
    running = run_feeds(redis=redis_url)
    with caplog.at_level(logging.WARNING):
        await eventually(lambda: "more than the router keeps" in caplog.text)
    assert running.texts.by_name == {}


async def test_few_sets_are_kept_beside_the_one_in_use(
    redis_url: str, writer: Any, run_feeds: Any, put: Any, eventually: Any
) -> None:
    """However many follow each other."""
    unit = writer("r0/0", secret=SECRET.encode())
    await unit.register(text_files=await put())
    running = run_feeds(redis=redis_url, registration={"secret": SECRET})
    await eventually(lambda: "tiny" in running.texts.by_name)
    for number in range(5):
        await unit.lease(text_files=await put({ENGINE_TEMPLATE: b"%d" % number}))
        await eventually(lambda number=number: running.texts.by_name["tiny"].render_chat(CHAT) == str(number))
    assert len(running.feeds.redis._published._kept) == 1 + published_texts.MAX_SPARE


async def test_a_configured_tokenizer_is_not_replaced(
    redis_url: str, writer: Any, run_feeds: Any, put: Any, eventually: Any, golden: Path
) -> None:
    """What the operator named holds; the other model's comes from its agents."""
    listed = await put()
    await writer("r0/0").register(text_files=listed)
    models = [{"name": "tiny", "tokenizer": str(golden / "tokenizer")}, {"name": "other"}]
    running = run_feeds(redis=redis_url, models=models)
    other = writer("r1/0")
    served = [type(other.registration().models[0])("other", "other")]
    await other.register(url="http://127.0.0.1:8", models=served, text_files=listed)
    await eventually(lambda: "other" in running.texts.by_name)
    assert "tiny" not in running.texts.by_name
