"""The admin application of a small fleet, on a port of its own."""

from __future__ import annotations

import io
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.admin.app import AdminView, build_admin
from router.admin.runner import AdminRunner
from router.config_file import parse
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.request.reader import PromptReader
from router.telemetry.access_log import AccessLog
from router.telemetry.decisions import DecisionLog
from router.telemetry.fleet_series import FleetSeries
from router.telemetry.metrics import Metrics
from router.telemetry.recorder import Recorder

SECRETS = {"token": "AT-777-token", "secret": "RS-888-of-sixteen", "password": "RP-333"}


class Orders:
    """Takes orders to drain, and keeps them; knows r0 alone."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    async def drain(self, replica_id: str, for_s: float) -> dict[str, Any] | None:
        """Drain for `for_s` seconds."""
        self.given.append((replica_id, for_s))
        return {"replica": replica_id} if replica_id == "r0" else None

    async def undo(self, replica_id: str) -> dict[str, Any] | None:
        """Let it take requests again."""
        self.given.append((replica_id,))
        return {"replica": replica_id} if replica_id == "r0" else None


class Admin:
    """A running admin application: what it reads and where it is."""

    def __init__(self, **settings: Any) -> None:
        self.orders = Orders()
        data = {
            "listen": "127.0.0.1:0",
            "models": [{"name": "tiny"}],
            "redis": f"redis://:{SECRETS['password']}@redis.example:6379/0",
            "registration": {"secret": SECRETS["secret"]},
            **settings,
        }
        self.config = parse(data, {})
        self.index = PrefixIndex()
        self.fleet = Fleet(on_unit_withdrawn=lambda unit: self.index.clear(unit.slot))
        self.decisions = DecisionLog(10)
        self.metrics = Metrics("1", self.config.paths, lambda name: self.fleet.base_model(name) is not None)
        self.recorder = Recorder(self.metrics, self.decisions, AccessLog(enabled=False))
        self.metrics.register(FleetSeries(self.fleet, self.index, time.monotonic))
        approximate = ApproximateMemory(self.index)
        self.placer = Placer(
            self.fleet,
            self.index,
            ExpectedBlocks(),
            approximate,
            self.config.placement,
            random.Random(1),
            time.time,
        )
        self.reader = PromptReader(lambda model: None)
        self.reasons: list[str] = []
        self.chains = self.recorder.chains
        self.view = view = AdminView(
            fleet=self.fleet,
            index=self.index,
            recorder=self.recorder,
            metrics=self.metrics,
            config=self.config,
            placer=self.placer,
            reader=self.reader,
            not_ready=lambda: self.reasons,
            clock=time.monotonic,
            drains=self.orders,
            chains=self.chains,
        )
        self.runner = AdminRunner(build_admin(view), shutdown_timeout=0.1)
        self.url = ""
        self.session: aiohttp.ClientSession

    def announce(self, replica_id: str, port: int) -> None:
        """Add a replica that serves `tiny`."""
        unit = UnitFacts(f"{replica_id}/0", 0, Scheme(HashAlgorithm.SHA256_CBOR, 16, "SEED-999"), Trust.EXACT, 1000)
        facts = ReplicaFacts(
            replica_id, f"http://127.0.0.1:{port}", "redis", (ServedModel("tiny", "/m/tiny"),), (unit,)
        )
        self.fleet.announce(facts, time.monotonic())

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """GET; status and JSON."""
        async with self.session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, data: Any) -> tuple[int, Any]:
        """POST bytes or JSON; status and JSON."""
        body = {"data": io.BytesIO(data)} if isinstance(data, bytes) else {"json": data}
        async with self.session.post(self.url + path, **body) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def admins() -> AsyncIterator[Callable[..., Any]]:
    """`await admins(admin={...})`: a running admin application with this configuration."""
    running: list[Admin] = []

    async def start(**settings: Any) -> Admin:
        one = Admin(**settings)
        await one.runner.setup()
        site = web.TCPSite(one.runner, "127.0.0.1", 0)
        await site.start()
        one.url = f"http://127.0.0.1:{one.runner.addresses[0][1]}"
        one.session = aiohttp.ClientSession()
        running.append(one)
        return one

    yield start
    for one in running:
        await one.session.close()
        await one.runner.cleanup()
