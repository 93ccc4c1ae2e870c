"""The system's Chromium, pages that must log no error, and a router of 200 replicas to show."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from router.admin.app import AdminView, build_admin
from router.admin.runner import AdminRunner
from router.config_file import parse
from router.fleet.facts import EngineLoad, ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.request.reader import PromptReader
from router.telemetry.access_log import AccessLog
from router.telemetry.decisions import DecisionLog
from router.telemetry.metrics import Metrics
from router.telemetry.recorder import Recorder
from router.tools.chromium import chromium

SHARED_BLOCKS = 64


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """`open_page(url, width=..., color_scheme=...)`: a page of its own; whatever it logs as an error fails the test."""
    contexts: list[Any] = []
    errors: list[str] = []
    expected: list[str] = []

    def start(url: str, *, width: int = 1440, height: int = 1000, color_scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=color_scheme)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    start.expected = expected  # type: ignore[attr-defined]  # what errors may hold: a browser notes each 401 itself
    yield start
    for context in contexts:
        context.close()
    assert [error for error in errors if not any(part in error for part in expected)] == []


class Large:
    """A real admin application with a real fleet and index of many replicas; no engines stand behind it."""

    def __init__(self, replicas: int, token: str | None) -> None:
        self.config = parse(
            {"listen": "127.0.0.1:0", "models": [{"name": "tiny"}], "redis": "redis://h", "admin": {"token": token}}, {}
        )
        self.index, self.metrics = PrefixIndex(), Metrics("1")
        self.recorder = Recorder(self.metrics, DecisionLog(10), AccessLog(enabled=False))
        self.chains = self.recorder.chains
        self.fleet = Fleet(on_unit_withdrawn=lambda unit: self.index.clear(unit.slot))
        for number in range(replicas):
            self._add(number)
        for _ in range(2):
            self.chains.offer("tiny", 16, range(1, SHARED_BLOCKS + 1), 16 * SHARED_BLOCKS + 1)
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._runner: AdminRunner | None = None

    def _add(self, number: int) -> None:
        name = f"vllm-{number:03}"
        unit = UnitFacts(f"{name}/0", 0, Scheme(HashAlgorithm.SHA256_CBOR, 16, None), Trust.EXACT, 20_000)
        self.fleet.announce(ReplicaFacts(name, f"http://{name}:1", "redis", (ServedModel("tiny", "/m"),), (unit,)), 0.0)
        found = self.fleet.units[f"{name}/0"]
        found.load = EngineLoad(number % 17, number % 3, (number % 100) / 100, time.monotonic())
        self.index.store(found.slot, range(1, 2 + number % SHARED_BLOCKS))

    def call(self, change: Callable[[], Any]) -> Any:
        """Change something on the loop that serves, and wait until that is done."""
        done: Any = asyncio.run_coroutine_threadsafe(_called(change), self._loop).result(10)
        return done

    def start(self) -> None:
        """Serve, in a thread."""
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(30)

    def stop(self) -> None:
        """Serve no more."""
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._runner = None

    async def _serve(self) -> None:
        approximate = ApproximateMemory(self.index)
        chance, rules = random.Random(1), self.config.placement
        placer = Placer(self.fleet, self.index, ExpectedBlocks(), approximate, rules, chance, time.time)
        view = AdminView(
            fleet=self.fleet,
            index=self.index,
            recorder=self.recorder,
            metrics=self.metrics,
            config=self.config,
            placer=placer,
            reader=PromptReader(lambda model: None),
            not_ready=list,
            clock=time.monotonic,
            chains=self.chains,
        )
        self._runner = AdminRunner(build_admin(view))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/admin/"


async def _called(change: Callable[[], Any]) -> Any:
    return change()


@pytest.fixture
def large() -> Iterator[Callable[..., Large]]:
    """`large(200, token=None)`: serving."""
    started: list[Large] = []

    def start(replicas: int, token: str | None = None) -> Large:
        one = Large(replicas, token)
        one.start()
        started.append(one)
        return one

    yield start
    for one in started:
        one.stop()
