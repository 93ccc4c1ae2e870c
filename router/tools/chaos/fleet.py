"""The fleet under test: simulated engines with agents, routers, and Valkey, with a relay on every connection that can
be struck.

    agent -> relay -> engine's events        agent -> relay -> engine's replay
    agent -> relay -> Valkey                 router -> relay -> Valkey

Requests and health questions go to the engines directly.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from loadtest.workloads.text import tokenizer_folder
from router.tools.chaos.frames import Mangler
from router.tools.chaos.processes import ChaosProcess, Outages, free_port
from router.tools.chaos.questions import get_json
from router.tools.chaos.relay import Relay
from router.tools.chaos.valkeys import Valkeys
from router.tools.processes import stop_all

MODEL = "tiny"
NUM_BLOCKS = 640
ENGINE_OPTIONS = (
    *("--model", MODEL, "--tokenizer", str(tokenizer_folder())),
    *("--num-blocks", str(NUM_BLOCKS), "--max-num-seqs", "32", "--max-num-batched-tokens", "1024"),
    *("--prefill-tokens-per-s", "20000", "--decode-step-s", "0.01"),
)
SHORT_REPLAY = "replay_batches=1500"
"""Twenty seconds of traffic and more: longer than an agent is away."""
VARIANTS = (
    ("--block-size", "16", "--hash-algo", "sha256_cbor"),
    ("--block-size", "16", "--hash-algo", "sha256_cbor", "--event-encoding", "array", "--event-hashes", "bytes"),
    ("--block-size", "32", "--hash-algo", "sha256_cbor", "--event-encoding", "array", "--fault", SHORT_REPLAY),
    ("--block-size", "16", "--hash-algo", "sha256", "--seed", "0", "--fault", SHORT_REPLAY),
)
"""Engines differ as those of a fleet that is being upgraded do. Where replay is short, an agent that starts again must
go on from what it kept."""
AGENT_VARIANTS: tuple[tuple[str, ...], ...] = ((), (), (), ("--hash-seed", "0"))
DRAIN_S = 10


class ChaosFleet:
    """Starts on `async with`, ends on leaving, from the main thread.

    Args:
        folder: For configuration and output.
        client: For questions to routers.
        seed: Chooses ports alone.
        settings: More of every router's configuration.

    Attributes:
        engines, agents, routers: By number.
        links: Relays before Valkey, by target name: `link-agent-0`, `link-router-0`.
        frames, replays: Relays between agent and engine, by target name; manglers by the names of `frames`.
        outages: Who was out when.
    """

    def __init__(
        self,
        folder: Path,
        client: aiohttp.ClientSession,
        seed: int,
        replicas: int = 4,
        routers: int = 2,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings or {}
        self._folder = folder
        self._client = client
        self._rng = random.Random(f"{seed}/ports")
        self._counts = replicas, routers
        self.outages = Outages()
        self.valkeys = Valkeys(folder, self._rng)
        self.engines: list[ChaosProcess] = []
        self.agents: list[ChaosProcess] = []
        self.routers: list[ChaosProcess] = []
        self.links: dict[str, Relay] = {}
        self.frames: dict[str, Relay] = {}
        self.replays: dict[str, Relay] = {}
        self.manglers: dict[str, Mangler] = {}
        self._configs: dict[int, dict[str, Any]] = {}
        self.engine_urls: list[str] = []
        self.router_urls: list[str] = []

    def processes(self) -> dict[str, ChaosProcess]:
        """Return engines, agents and routers by name."""
        return {process.name: process for process in (*self.engines, *self.agents, *self.routers)}

    async def __aenter__(self) -> ChaosFleet:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def retarget(self) -> None:
        """Send everybody to the Valkey that counts now; connections to the one before are reset."""
        for relay in self.links.values():
            relay.port = self.valkeys.port
            relay.end_connections(reset=True)

    async def join(self) -> int:
        """Start one more replica; return its number once engine and agent are ready."""
        number = len(self.engines)
        self._add_engine(number)
        await self.engines[number].until_ready()
        await self._add_agent(number)
        await self.agents[number].until_ready()
        return number

    async def leave(self) -> None:
        """End the replica that came last, in order: its agent drains it and says goodbye."""
        number = len(self.engines) - 1
        for process in (self.agents[number], self.engines[number]):
            await process.end()
            self.outages.end(process.name)
        self.agents.pop()
        self.engines.pop()
        self.engine_urls.pop()
        for relays, name in ((self.links, f"link-agent-{number}"), (self.frames, f"frames-{number}")):
            await relays.pop(name).close()
        await self.replays.pop(f"replay-{number}").close()
        del self.manglers[f"frames-{number}"]

    def configure(self, number: int, **more: Any) -> None:
        """Write a router's configuration again, with other values of these keys; it reads the file by itself."""
        config = self._configs[number] = {**self._configs[number], **more}
        part = self._config_file(number).with_suffix(".new")
        part.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        part.replace(self._config_file(number))

    def _config_file(self, number: int) -> Path:
        return self._folder / f"router-{number}.yaml"

    async def _start(self) -> None:
        replicas, routers = self._counts
        await self.valkeys.start()
        for number in range(replicas):
            self._add_engine(number)
        for number in range(routers):
            await self._add_router(number)
        await asyncio.gather(*(engine.until_ready() for engine in self.engines))
        for number in range(replicas):
            await self._add_agent(number)
        await asyncio.gather(*(process.until_ready() for process in (*self.agents, *self.routers)))

    def _add_engine(self, number: int) -> None:
        port, events, replay = (free_port(self._rng) for _ in range(3))
        ports = ("--port", str(port), "--events-port", str(events), "--replay-port", str(replay))
        self.engine_urls.append(f"http://127.0.0.1:{port}")
        self.manglers[f"frames-{number}"] = mangler = Mangler()
        self.frames[f"frames-{number}"] = Relay(events, mangler)
        self.replays[f"replay-{number}"] = Relay(replay)
        self.engines.append(
            self._spawned(f"engine-{number}", "simengine", *ports, *ENGINE_OPTIONS, *_of(VARIANTS, number))
        )

    async def _add_agent(self, number: int) -> None:
        redis = await self._link(f"link-agent-{number}")
        events = await self.frames[f"frames-{number}"].start()
        replay = await self.replays[f"replay-{number}"].start()
        options = (
            *("--engine-url", self.engine_urls[number], "--redis", redis, "--replica-id", f"r{number}"),
            *("--kv-events", f"tcp://127.0.0.1:{events}", "--kv-replay", f"tcp://127.0.0.1:{replay}"),
            *("--snapshot-s", "5", "--listen", "127.0.0.1:0", *_of(AGENT_VARIANTS, number)),
        )
        self.agents.append(self._spawned(f"agent-{number}", "agent", *options))

    async def _add_router(self, number: int) -> None:
        port = free_port(self._rng)
        self._configs[number] = {
            "listen": f"127.0.0.1:{port}",
            "models": [{"name": MODEL, "tokenizer": str(tokenizer_folder()), "block_size": 16}],
            "redis": await self._link(f"link-router-{number}"),
            # What an engine that is killed had not begun to answer is answered by another one.
            "retry": {"broken": True},
            "timeouts": {"drain_s": DRAIN_S},
            "log": {"access": False},
        }
        self.configure(number, **self._settings)
        path = self._config_file(number)
        url = f"http://127.0.0.1:{port}"

        async def takes_traffic() -> bool:
            # As a load balancer asks before it sends anything there.
            return bool(await get_json(self._client, f"{url}/readyz"))

        self.router_urls.append(url)
        self.routers.append(self._spawned(f"router-{number}", "router", "--config", str(path), asked=takes_traffic))

    async def _link(self, name: str) -> str:
        relay = self.links[name] = Relay(self.valkeys.port)
        return f"redis://127.0.0.1:{await relay.start()}/0"

    def _spawned(self, name: str, *command: str, asked: Callable[[], Awaitable[bool]] | None = None) -> ChaosProcess:
        whole = [sys.executable, "-m", "router.cli", *command]
        process = ChaosProcess(name, whole, self._folder, self.outages, asked)
        process.spawn()
        return process

    async def _stop(self) -> None:
        # Routers first, so that nothing is sent to what is going.
        for group in (self.routers, [*self.agents, *self.engines]):
            await asyncio.to_thread(stop_all, [process.child for process in group])
        await asyncio.to_thread(stop_all, self.valkeys.children())
        for relay in (*self.links.values(), *self.frames.values(), *self.replays.values()):
            await relay.close()


def _of(variants: tuple[tuple[str, ...], ...], number: int) -> tuple[str, ...]:
    return variants[number % len(variants)]
