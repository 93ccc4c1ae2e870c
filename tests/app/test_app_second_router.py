"""A router that joins, or starts again, decides from its first request on as the one that was there all the time."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtest.workloads.text import TextMaker, load_tokenizer, tokenizer_folder
from router.tools.local_fleet import EngineOptions, LocalFleet
from router.tools.processes import Child, stop_all

DOCUMENTS = 16
DECISIONS = 100


class Readers:
    """Questions about documents: each is long, so that who holds it decides."""

    def __init__(self) -> None:
        self._maker = TextMaker(load_tokenizer(tokenizer_folder()))
        self._rng = random.Random("readers")
        self.documents = [self._maker.make(600, self._rng) for _ in range(DOCUMENTS)]

    def body(self, number: int) -> dict[str, Any]:
        """A new question about a document."""
        content = f"{self.documents[number % DOCUMENTS]}\n\n{self._maker.make(24, self._rng)}"
        return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 4}


@pytest.fixture(scope="module")
def wide_fleet() -> Iterator[LocalFleet]:
    """Four replicas with agents behind a router."""
    engine = EngineOptions(num_blocks=1_024, prefill_tokens_per_s=200_000, decode_step_s=0.001)
    with LocalFleet(engine, replicas=4) as running:
        yield running


@pytest.fixture
def traffic(wide_fleet: LocalFleet, client_of: Callable[[str], Any]) -> Iterator[None]:
    """Questions through the first router all the time, one after the other."""
    stop, failures = threading.Event(), []

    def ask() -> None:
        readers, client, number = Readers(), client_of(wide_fleet.router.http), 0
        while not stop.is_set():
            status, _, answer = client.send("POST", "/v1/chat/completions", readers.body(number))
            if status != 200:
                failures.append(answer)
            number += 1
            stop.wait(0.02)

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    stop.set()
    thread.join()
    assert failures == []


@pytest.fixture
def second_router(wide_fleet: LocalFleet) -> Iterator[Callable[[], Child]]:
    """Start another router with the same configuration."""
    children: list[Child] = []

    def start() -> Child:
        command = [sys.executable, "-m", "router.cli", "router", "--config", str(wide_fleet.folder / "router.yaml")]
        children.append(Child(f"second-{len(children)}", command, wide_fleet.folder))
        return children[-1]

    yield start
    stop_all(children)


async def test_the_first_hundred_decisions_are_those_of_the_router_that_stayed_up(
    wide_fleet: LocalFleet,
    traffic: None,
    second_router: Callable[[], Child],
    client_of: Callable[[str], Any],
    eventually: Callable[..., Any],
) -> None:
    """Under constant traffic a router joins, is killed, and starts again. Each time its first 100 requests go where the
    other one would send them at that moment, with as much matched: what it says right before, or right after."""
    first, readers = client_of(wide_fleet.router.http), Readers()

    def settled() -> bool:
        # Every document was asked about, and is held where it was asked about.
        answers = [first.send("POST", "/admin/explain", readers.body(number))[2] for number in range(DOCUMENTS)]
        return all(answer["matched_tokens"] >= 500 for answer in answers)

    def would(body: dict[str, Any]) -> tuple[str, int]:
        decision = first.send("POST", "/admin/explain", body)[2]
        return decision["winner"].partition("/")[0], decision["matched_tokens"]

    await eventually(settled, timeout_s=60)
    for _ in range(2):
        child = second_router()
        ready = await eventually(child.ready_line, timeout_s=60)
        second = client_of(ready["http"])
        await eventually(lambda second=second: second.send("GET", "/readyz")[0] == 200, timeout_s=60)
        matched, others = 0, []
        for number in range(DECISIONS):
            body = readers.body(number)
            before = would(body)
            status, headers, answer = second.send("POST", "/v1/chat/completions", body)
            assert status == 200, answer
            after = would(body)
            decided = headers["x-warmroute-replica"], int(headers["x-warmroute-matched-tokens"])
            known = sorted((before[1], after[1]))
            if decided[0] not in (before[0], after[0]) or not known[0] <= decided[1] <= known[1]:
                others.append((before, decided, after))
            matched += decided[1]
        assert others == []
        assert matched > DECISIONS * 500
        child.signal(signal.SIGKILL)
        child.wait(10)
