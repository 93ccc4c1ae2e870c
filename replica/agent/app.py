"""The agent as a whole: waits for its engine, runs a unit per rank, watches the engine, and ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import time
from typing import Any

import aiohttp
import zmq.asyncio

from replica.agent import redis_link
from replica.agent.draining import DrainOrders, IdleWatch
from replica.agent.engine import Engine, EngineFacts
from replica.agent.engine_process import PASSED_ON, EngineProcess
from replica.agent.health import HealthServer
from replica.agent.metrics import AgentMetrics
from replica.agent.rank_agent import RankAgent
from replica.agent.settings import AgentSettings
from replica.agent.text_publisher import TextPublisher
from replica.errors import EngineError
from router.kv import engine_metrics
from router.kv.engine_metrics import Load

log = logging.getLogger(__name__)

LOAD_S = 0.4
"""Between two scrapes of the engine's load; routers hear of it at least twice a second."""
SCRAPE_TIMEOUT_S = 1.0
HEALTH_S, HEALTH_TIMEOUT_S = 2.0, 3.0
FAILURES_UNTIL_GONE = 3
FACTS_S = 3.0
CLOSE_S = 2.0


class Agent:
    """One agent process."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._metrics = AgentMetrics()
        self._ranks: list[RankAgent] = []
        self._engine_up = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle: IdleWatch | None = None
        self._signal = signal.SIGTERM
        self._process: EngineProcess | None = None
        self._process_told = False
        self._failures = 0
        self._health_due_s = self._facts_due_s = 0.0

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until the engine that it started ends; return the exit code.

        Raises:
            UsageError: When --listen can't be bound, or the engine's command can't be started.
        """
        settings = self._settings
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        health = HealthServer(self._status, self._render_metrics)
        http = await health.start(settings.listen_host, settings.listen_port)
        context = zmq.asyncio.Context()
        redis = redis_link.connect(settings.redis_url)
        session = aiohttp.ClientSession()
        self._engine = Engine(session, settings.engine_url, settings.engine_api_key)
        self._redis, self._context = redis, context
        self._texts = TextPublisher(settings, redis)
        self._orders = DrainOrders(redis, settings.keys, settings.replica_id, settings.registration_secret)
        tasks: set[asyncio.Task[Any]] = set()
        try:
            if settings.engine_command:
                self._process = await EngineProcess.start(
                    settings.engine_command,
                    as_it_is=settings.engine_as_it_is,
                    events=settings.kv_events,
                    replay=settings.kv_replay,
                )
                for number in PASSED_ON:
                    loop.add_signal_handler(number, self._process.tell, number)
                tasks.add(asyncio.create_task(self._process.ended()))
            tasks.add(asyncio.create_task(self._stop.wait()))
            main = asyncio.create_task(self._main(http))
            tasks.add(main)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                await self._finish_requests(tasks)
            code = await main if main.done() else 0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_ranks()
            await health.close()
            await session.close()
            await redis.close()
            context.destroy(linger=0)
            status = await self._end_process()
        return code or status

    def _on_signal(self, number: signal.Signals) -> None:
        self._signal = number
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        if self._process is not None and self._process_told:
            self._process.tell(number)

    async def _finish_requests(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Announce the end, then let what runs finish: until the engine is idle or gone, or the time is over."""
        if not self._ranks:
            return
        began_s = time.monotonic()
        self._idle = IdleWatch(began_s)
        self._set_draining()
        log.info("draining: no new requests, what runs finishes", extra={"drain_s": self._settings.drain_s})
        others = {task for task in tasks if not task.done()}
        others.add(asyncio.create_task(self._hurry.wait()))
        tasks |= others
        while self._engine_up and not self._idle.is_idle:
            left_s = self._settings.drain_s - (time.monotonic() - began_s)
            if left_s <= 0:
                log.warning("requests are still running: --drain-s is over")
                return
            done, _ = await asyncio.wait(others, timeout=min(left_s, 0.05), return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            if all(rank.sink.is_told for rank in self._ranks):
                self._idle.told(time.monotonic())

    def _set_draining(self) -> None:
        ordered = self._orders.hold(time.time())
        for rank in self._ranks:
            rank.drain(self._idle is not None or ordered)
            rank.refresh()

    async def _end_process(self) -> int:
        """Pass the signal on, once no router sends anything more: the lease is gone by now. As long as it takes."""
        if self._process is None:
            return 0
        self._process_told = True
        self._process.tell(self._signal)
        return await self._process.ended()

    async def _main(self, http: str) -> int:
        facts = await self._first_facts()
        if facts is None:
            return 1
        await self._start_ranks(facts)
        texts = asyncio.create_task(self._texts.run())
        orders = asyncio.create_task(self._orders.run())
        watch = asyncio.create_task(self._watch(facts))
        ready = asyncio.create_task(self._all_ready())
        try:
            await asyncio.wait({watch, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not watch.done():
                units = [rank.unit_id for rank in self._ranks]
                line = {"ready": "agent", "http": http, "replica": self._settings.replica_id, "units": units}
                # Whoever waited for it may be gone: that is no reason to end.
                with contextlib.suppress(OSError, ValueError):
                    print(json.dumps(line), flush=True)
            await watch
        finally:
            self._texts.end()
            for task in (ready, watch, texts, orders):
                task.cancel()
            await asyncio.gather(ready, watch, texts, orders, return_exceptions=True)
        return 1

    async def _all_ready(self) -> None:
        for rank in self._ranks:
            await rank.sink.ready.wait()

    async def _first_facts(self) -> EngineFacts | None:
        """Wait for the engine's first answer; None when --wait-ready is over."""
        settings = self._settings
        began_s = time.monotonic()
        said = False
        while True:
            try:
                if not await self._engine.healthy(HEALTH_TIMEOUT_S):
                    raise EngineError(f"{settings.engine_url}/health does not answer 200")
                return await self._facts(settings.engine)
            except EngineError as error:
                if settings.wait_ready_s is not None and time.monotonic() - began_s >= settings.wait_ready_s:
                    log.error(f"no engine after {settings.wait_ready_s} s (--wait-ready): {error}")
                    return None
                if not said:
                    log.warning(f"waiting for the engine: {error}")
                    said = True
            await asyncio.sleep(0.25)

    async def _facts(self, kind: str) -> EngineFacts:
        settings, started = self._settings, self._process
        untold = started.added.sockets.reached if started is not None and started.added.sockets is not None else None
        return await self._engine.facts(settings.kv_events, settings.kv_replay, kind, untold)

    async def _start_ranks(self, facts: EngineFacts) -> None:
        self._ranks = [
            RankAgent(
                self._settings,
                source,
                facts,
                self._engine,
                self._redis,
                self._context,
                self._metrics,
                lambda: self._texts.files,
            )
            for source in facts.ranks
        ]
        for rank in self._ranks:
            rank.start()
        self._engine_up = True
        await asyncio.gather(*(rank.serve() for rank in self._ranks))

    async def _stop_ranks(self) -> None:
        await asyncio.gather(*(rank.stop(CLOSE_S) for rank in self._ranks))
        self._ranks = []

    async def _watch(self, facts: EngineFacts) -> None:
        """Follow the engine: its load, and beside that its health and what it serves, so that neither holds it up."""
        self._known = facts
        looking: asyncio.Task[None] | None = None
        try:
            while True:
                began_s = time.monotonic()
                loads = await self._scrape_on_time()
                if self._idle is not None:
                    self._idle.saw(loads, began_s)
                self._set_draining()
                for rank in self._ranks:
                    rank.sink.report_load(_of_rank(loads, rank.rank, len(self._ranks)))
                    self._texts.look(self._known.models, self._lives())
                    for error in rank.failures():
                        raise error
                if looking is not None and looking.done():
                    await looking
                    looking = None
                if looking is None:
                    looking = asyncio.create_task(self._look(is_loaded=loads is not None))
                await asyncio.sleep(max(0.0, LOAD_S - (time.monotonic() - began_s)))
        finally:
            if looking is not None:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    async def _look(self, *, is_loaded: bool) -> None:
        """Ask whether the engine is alive and what it serves, where that is due."""
        now_s = time.monotonic()
        if not is_loaded or not self._engine_up or now_s >= self._health_due_s:
            self._health_due_s = now_s + HEALTH_S
            self._failures = 0 if await self._engine.healthy(HEALTH_TIMEOUT_S) else self._failures + 1
            if self._failures >= FAILURES_UNTIL_GONE and self._engine_up:
                self._engine_up = False
                log.error(f"the engine at {self._settings.engine_url} is gone; looking for it until it is back")
                for rank in self._ranks:
                    rank.engine_gone()
        if self._failures == 0 and (now_s >= self._facts_due_s or not self._engine_up):
            self._facts_due_s = now_s + FACTS_S
            self._known = await self._learn(self._known)

    def _lives(self) -> tuple[int, ...]:
        """What changes with each new life of the engine's caches; with a loss in Redis too."""
        return tuple(rank.sink.epoch for rank in self._ranks)

    async def _scrape_on_time(self) -> dict[str, Load] | None:
        """Scrape; an engine that is slow to tell its load beats with the last one meanwhile, then it is unknown."""
        scrape = asyncio.create_task(self._scrape())
        try:
            while not (await asyncio.wait({scrape}, timeout=LOAD_S))[0]:
                for rank in self._ranks:
                    rank.sink.beat()
            return await scrape
        finally:
            scrape.cancel()

    async def _scrape(self) -> dict[str, Load] | None:
        try:
            text = await self._engine.metrics(SCRAPE_TIMEOUT_S)
        except EngineError:
            self._metrics.scrape_errors.inc()
            return None
        started_s = engine_metrics.started_s(text)
        if started_s is not None:
            for rank in self._ranks:
                rank.engine_started(started_s)
        return engine_metrics.loads(text)

    async def _learn(self, known: EngineFacts) -> EngineFacts:
        try:
            facts = await self._facts(known.engine)
        except EngineError as error:
            log.warning(f"the engine does not say what it serves: {error}")
            return known
        if facts.ranks != known.ranks:
            log.warning("the engine's ranks or sockets changed")
            await self._stop_ranks()
            await self._start_ranks(facts)
            return facts
        for rank in self._ranks:
            rank.learn(facts)
        if not self._engine_up:
            log.info("the engine is back")
            self._engine_up = True
            await asyncio.gather(*(rank.serve() for rank in self._ranks))
        return facts

    def _render_metrics(self) -> bytes:
        metrics = self._metrics
        metrics.engine_up.set(self._engine_up)
        metrics.draining.set(self._idle is not None or self._orders.hold(time.time()))
        for rank in self._ranks:
            metrics.redis_up.labels(rank.unit_id).set(rank.sink.healthy)
        return metrics.render([rank.unit for rank in self._ranks])

    def _status(self) -> dict[str, Any]:
        units = {rank.unit_id: rank.status() for rank in self._ranks}
        return {"status": "ok", "engine": "up" if self._engine_up else "gone", "units": units}


def _of_rank(loads: dict[str, Load] | None, rank: int, ranks: int) -> Load | None:
    if not loads:
        return None
    if ranks == 1 and len(loads) == 1:
        return next(iter(loads.values()))
    return loads.get(str(rank))
