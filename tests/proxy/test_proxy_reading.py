"""Long bodies are read in threads, under a deadline, and nothing waits for them without end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from router.config_bounds import LimitsConfig
from router.kv.extra_keys import Lora
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.proxy import reading as module
from router.proxy.reading import PromptReading
from router.request.prompt import Kind, Prompt
from router.request.reasons import Reason

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


class SlowReader:
    """Reads `{"model": ..., "n": ...}` as a prompt of n tokens; gates hold it before facts and before tokens."""

    def __init__(self) -> None:
        self.before_facts, self.before_tokens = threading.Event(), threading.Event()
        self.begun: list[int] = []
        self.fault: Exception | None = None
        self.open()

    def open(self) -> None:
        self.before_facts.set()
        self.before_tokens.set()

    def facts(self, path: str, body: bytes) -> Prompt:
        data = json.loads(body)
        return Prompt(Kind.COMPLETION, data["model"], False, None, len(body) // 4)

    def quick(self, path: str, body: bytes, inline_bytes: int) -> Prompt | None:
        return self.read(path, body) if len(body) <= inline_bytes else None

    def read(self, path: str, body: bytes, drafted: Callable[[Prompt], None] | None = None) -> Prompt:
        self.begun.append(len(body))
        self.before_facts.wait(10)
        prompt = self.facts(path, body)
        if drafted is not None:
            drafted(prompt)
        self.before_tokens.wait(10)
        if self.fault is not None:
            raise self.fault
        prompt.token_ids = list(range(json.loads(body)["n"]))
        prompt.tokens = len(prompt.token_ids)
        return prompt


def body(tokens: int = 64, pad: int = 0) -> bytes:
    return json.dumps({"model": "tiny", "n": tokens, "pad": "x" * pad}).encode()


class Room:
    """A reading room of one thread; what came of each body, in order."""

    def __init__(self, **limits: int) -> None:
        self.reader = SlowReader()
        self.namings: list[tuple[Scheme, Lora | None]] = [(SCHEME, None)]
        config = LimitsConfig(**limits)
        loop = asyncio.get_running_loop()
        self.reading = PromptReading(loop, self.reader, lambda model: self.namings, config, threads=1)
        self.prompts: list[Prompt] = []
        self.faults: list[BaseException] = []

    def begin(self, data: bytes | None = None) -> Any:
        return self.reading.begin(
            "/v1/completions",
            body() if data is None else data,
            lambda prompt, seconds: self.prompts.append(prompt),
            self.faults.append,
        )


@pytest.fixture
def room() -> Iterator[Callable[..., Room]]:
    """Makes rooms, and lets their threads go at the end."""
    made: list[Room] = []

    def make(**limits: int) -> Room:
        made.append(Room(**limits))
        return made[-1]

    yield make
    for each in made:
        each.reader.open()
        each.reading.close()


async def test_a_body_is_read_and_hashed_in_the_thread(room: Any, eventually: Any) -> None:
    """Every chain that its candidates will be asked for is there already."""
    one = room()
    one.begin()
    await eventually(lambda: one.prompts)
    [prompt] = one.prompts
    assert (prompt.reason, prompt.tokens) == (None, 64)
    assert prompt.chains == {(SCHEME, None, None, ()): chain(range(64), SCHEME)}


async def test_past_the_deadline_the_request_goes_on_with_what_is_known(room: Any, eventually: Any) -> None:
    """Its model is; its tokens are not. The late result is dropped."""
    one = room(tokenize_deadline_ms=20)
    one.reader.before_tokens.clear()
    one.begin()
    await eventually(lambda: one.prompts)
    [prompt] = one.prompts
    assert (prompt.model, prompt.token_ids, prompt.reason) == ("tiny", None, Reason.DEADLINE)
    one.reader.open()
    one.begin()
    await eventually(lambda: len(one.prompts) == 2)
    assert (one.prompts[1].tokens, one.faults) == (64, [])
    assert prompt.token_ids is None


async def test_a_late_fault_is_no_error(room: Any, eventually: Any) -> None:
    """The request is on its way already."""
    one = room(tokenize_deadline_ms=20)
    one.reader.before_tokens.clear()
    one.begin()
    await eventually(lambda: one.prompts)
    one.reader.fault = RuntimeError("too late")
    one.reader.open()
    await eventually(lambda: one.reading._free_threads == 1)
    assert (len(one.prompts), one.faults) == (1, [])


async def test_a_fault_in_time_is_told(room: Any, eventually: Any) -> None:
    """The request must be answered."""
    one = room()
    one.reader.fault = RuntimeError("broken")
    one.begin()
    await eventually(lambda: one.faults)
    assert (one.prompts, [str(fault) for fault in one.faults]) == ([], ["broken"])


async def test_one_that_no_thread_had_time_for_is_looked_at_by_the_loop(room: Any, eventually: Any) -> None:
    """The thread is busy with another one; the model is known all the same."""
    one = room(tokenize_deadline_ms=20)
    one.reader.before_facts.clear()
    one.begin()
    one.begin(body(pad=10))
    await eventually(lambda: len(one.prompts) == 2)
    assert {(prompt.model, prompt.reason) for prompt in one.prompts} == {("tiny", Reason.DEADLINE)}
    assert one.reading.waiting == 0


async def test_a_huge_one_that_no_thread_had_time_for_is_the_next(
    room: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop must not stall for it; it passes the shorter ones and goes on as soon as its model is known."""
    monkeypatch.setattr(module, "GLANCE_BYTES", 100)
    one = room(tokenize_deadline_ms=20)
    one.reader.before_tokens.clear()
    one.begin()
    huge = one.begin(body(pad=500))
    await eventually(lambda: huge.place[0] == 0)
    assert len(one.prompts) == 1
    one.reader.before_tokens.set()
    await eventually(lambda: len(one.prompts) == 2)
    assert one.prompts[1].model == "tiny"


async def test_the_queue_is_bounded(room: Any, eventually: Any) -> None:
    """One runs, one waits, the third goes on at once and says why."""
    one = room(tokenize_queue=1)
    one.reader.before_facts.clear()
    one.begin()
    one.begin()
    one.begin()
    await eventually(lambda: one.prompts)
    assert [prompt.reason for prompt in one.prompts] == [Reason.QUEUE_FULL]
    assert one.reading.waiting == 1
    one.reader.open()
    await eventually(lambda: len(one.prompts) == 3)
    assert [prompt.reason for prompt in one.prompts[1:]] == [None, None]


async def test_the_shortest_body_is_the_next(room: Any, eventually: Any) -> None:
    """A long prompt does not hold up those that take a moment."""
    one = room()
    one.reader.before_facts.clear()
    lengths = [len(one.begin(body(pad=pad)).body) for pad in (5, 300, 100, 200)]
    one.reader.open()
    await eventually(lambda: len(one.prompts) == 4)
    assert one.reader.begun == [lengths[0], lengths[2], lengths[3], lengths[1]]


async def test_nothing_is_done_for_a_client_that_left(room: Any, eventually: Any) -> None:
    """One that waits is never begun with, one that is read comes to nothing."""
    one = room(tokenize_deadline_ms=50)
    one.reader.before_tokens.clear()
    running, waiting = one.begin(), one.begin(body(pad=100))
    one.reading.cancel(running)
    one.reading.cancel(waiting)
    one.reader.open()
    one.begin()
    await eventually(lambda: one.prompts)
    assert len(one.prompts) == 1
    assert one.reader.begun == [len(body()), len(body())]


async def test_through_the_data_plane_a_late_prompt_is_placed_and_counted(
    harness: Any, engine: Any, wire: Any, eventually: Any
) -> None:
    """The client is answered though its prompt is never tokenised, and the reason is told."""
    one = await engine()
    item = await harness(one, limits={"inline_body_bytes": 0, "tokenize_deadline_ms": 20})
    go, read = threading.Event(), item.reader.read

    def slow(path: str, data: bytes, drafted: Any) -> Prompt:
        go.wait(10)
        return read(path, data)

    item.reader.read, item.reader.facts = slow, lambda path, data: Prompt(Kind.CHAT, "tiny", False, None, 5)
    client = await item.client()
    answer = await client.ask(wire.post(wire.chat_body()))
    go.set()
    assert answer.status == 200
    assert [decision.prompt_reason for decision in item.notes.decisions] == [Reason.DEADLINE]


@pytest.mark.parametrize(("secret", "on_the_loop"), [(None, False), ("0123456789abcdef", True)])
async def test_where_agents_may_bring_unsigned_templates_nothing_is_read_on_the_loop(
    harness: Any, engine: Any, wire: Any, secret: str | None, on_the_loop: bool
) -> None:
    """Their process is waited for; signed ones are rendered like the operator's own."""
    one = await engine()
    item = await harness(one, redis={"url": "redis://127.0.0.1:1"}, registration={"secret": secret})
    read, threads = item.reader.read, []

    def noted(path: str, data: bytes, drafted: Any = None) -> Prompt:
        threads.append(threading.current_thread())
        return read(path, data)

    item.reader.read = noted
    assert (await (await item.client()).ask(wire.post(wire.chat_body()))).status == 200
    assert [thread is threading.main_thread() for thread in threads] == [on_the_loop]
