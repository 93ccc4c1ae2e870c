"""The router put together: state is made here once and passed to whoever needs it. There are no singletons."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from router.admin.app import AdminView, build_admin
from router.admin.runner import AdminRunner
from router.admin.views import masked_config
from router.background import run_again
from router.config import RouterConfig, is_loopback, split_address
from router.config_reload import ReloadReport, digest_of
from router.core import Core
from router.errors import ConfigurationError, Problem
from router.feeds.engine_key import EngineKey
from router.feeds.feeds import Feeds
from router.feeds.remote_tokenizer import ReplicaTokenizer, open_session
from router.garbage import collect_seldom
from router.proving import SETTLE_EVERY_S
from router.proxy.data_plane import DataPlane
from router.proxy.listening import Listening, bind, url_of
from router.request.auth.limits import TenantLimits
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.request.text import Text
from router.seat import Seat
from router.siblings import Siblings
from router.telemetry.cache_series import CacheSeries
from router.telemetry.ledger_series import register_series
from router.telemetry.recorder import Recorder
from router.texts import ModelTexts
from router.tls import Contexts, contexts_of
from router.warming.engine_requests import EngineRequests
from router.warming.warmer import Warmer

LOG = logging.getLogger("warmroute.app")
SWEEP_EVERY_S = 0.05
FIRST_ROUND_S = 30.0
"""A router that starts waits this long for what its feeds know; then it serves with what it has."""
FIRST_FLEET_S = 5.0
"""And before it listens, this long for the replicas of its configuration to be known."""
Trace = Callable[[Prompt, Sequence[int], int], dict[str, Any] | None]
Bound = TypeVar("Bound")


class App:
    """One router process.

    Args:
        config: Checked already.
        texts: What the configuration's models need, loaded.
        seat: Its place among workers that serve one address together; None: it is the only process.
        plane: What carries the traffic.
    """

    def __init__(
        self, config: RouterConfig, texts: ModelTexts, seat: Seat | None = None, plane: type[DataPlane] = DataPlane
    ) -> None:
        self._seat = seat
        self._plane = plane
        self.config = config
        self.clock = time.monotonic
        self._tls = contexts_of(config)
        self._aliases = _aliases_of(config)
        texts.limit(config.limits)
        self.texts = texts
        core = self._core = Core(config, self.clock)
        self.index, self.fleet, self.metrics, self.placer = core.index, core.fleet, core.metrics, core.placer
        self.approximate, self.vouching = core.approximate, core.vouching
        self.reader = PromptReader(self._text_for, self._max_model_len_for, texts.token_cache)
        self.metrics.register(CacheSeries(texts.token_cache, self.reader.memo))
        self.recorder = Recorder.of(config, self.metrics)
        register_series(self.metrics, self.recorder, self.fleet)
        self.report = ReloadReport()
        self.draining = False
        self.pause_over = asyncio.Event()
        """Set to end the pause between becoming not ready and draining."""
        self._started_s = self.clock()
        self._limits = TenantLimits(share=1 / config.workers)
        self._engine_key = EngineKey(config.upstream)
        self.feeds = Feeds(
            config,
            self.fleet,
            self.index,
            self.metrics,
            self.clock,
            announced=core.announced,
            texts=texts,
            tls=self._tls.engines,
            shortfalls=self.placer.shortfalls,
            limits=self._limits,
            engine_headers=self._engine_key,
            group=None if seat is None else (seat.load.group, seat.load.number),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = contextlib.AsyncExitStack()
        self._data_plane: DataPlane | None = None
        self._warmer: Warmer | None = None
        self._admin_listening: Listening | None = None
        self._admin = AdminView(
            fleet=self.fleet,
            index=self.index,
            recorder=self.recorder,
            metrics=self.metrics,
            config=config,
            placer=self.placer,
            reader=self.reader,
            not_ready=self.not_ready,
            clock=self.clock,
            vouching=self.vouching,
            texts=texts,
            complete=self._complete,
            report=self.report,
            drains=self.feeds.drains,
            chains=self.recorder.chains,
        )
        self._note_loaded()

    async def start(self) -> dict[str, str]:
        """Bind everything and begin to follow the fleet.

        Returns:
            The ready line: `ready`, `http` (or what the plane speaks), `admin`.

        Raises:
            ConfigurationError: An address can't be bound.
        """
        self.recorder.begin()
        self._keep("feeds", self.feeds.run)
        self._keep("index sweep", self._sweep)
        self._keep("proving", self._judge)
        if self._seat is not None:
            self._keep("siblings", Siblings(self.fleet, self._seat.load, self.clock).run)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.feeds.begun.wait(), FIRST_FLEET_S)
            bound = await self._listen()
        except BaseException:
            await self.close()
            raise
        collect_seldom()
        return bound

    def not_ready(self) -> list[str]:
        """Why no traffic should come here now; empty when it may."""
        reasons = ["draining"] if self.draining else []
        now_s = self.clock()
        ready = self.fleet.ready_count(now_s)
        if not ready or now_s - self._started_s < FIRST_ROUND_S:
            reasons += self.feeds.reasons()
        if not ready:
            reasons.append(f"fleet: none of {len(self.fleet.replicas)} replicas is ready")
        return reasons

    def apply(
        self, config: RouterConfig, staged: ModelTexts, needs_restart: list[str], tls: Contexts | None = None
    ) -> None:
        """Serve by another configuration from now on, in one step between two requests. Those that run keep theirs.

        Args:
            config: Checked; equal to the present one in what can't change while running.
            staged: Texts of models that are new or changed.
            needs_restart: Changed keys that are not in `config`.
            tls: Its certificates, where they may be others than before.
        """
        models = {model.name: model for model in config.models}
        gone = [
            old.name
            for old in self.config.models
            if old.tokenizer is not None and (old.name not in models or models[old.name].tokenizer is None)
        ]
        self.config = self._admin.config = config
        self._aliases = _aliases_of(config)
        self.texts.limit(config.limits)
        self.texts.take_over(staged, gone)
        self._core.configure(config)
        self.feeds.configure(config)
        self._engine_key.take(config.upstream)
        self.recorder.configure(config)
        if self._data_plane is not None:
            self._data_plane.configure(config)
        if self._warmer is not None:
            self._warmer.config = config.placement.warming
        if tls is not None:
            self._use(tls)
        self.report.needs_restart = needs_restart
        self._note_loaded()

    def _use(self, tls: Contexts) -> None:
        """Use other certificates for connections from now on."""
        self._tls.engines.use(tls.engines)
        self._tls = Contexts(tls.clients, tls.admin, self._tls.engines)
        listening = self._data_plane.listening if self._data_plane is not None else None
        for each, context in ((listening, tls.clients), (self._admin_listening, tls.admin)):
            if each is not None:
                task = asyncio.get_running_loop().create_task(each.use(context))
                self._tasks.append(task)
                task.add_done_callback(self._tasks.remove)

    def _note_loaded(self) -> None:
        self.report.digest = digest_of(masked_config(self.config))
        self.report.loaded_unix_s = self.report.tried_unix_s = time.time()
        needs_restart = len(self.report.needs_restart)
        self.metrics.config_loaded(self.report.digest, self.report.loaded_unix_s, needs_restart)

    async def cover(self, sockets: Sequence[socket.socket], *, covers: bool) -> None:
        """Accept from another worker's sockets too, or no more."""
        if self._data_plane is None or self._data_plane.listening is None:
            return
        if covers:
            await self._data_plane.listening.accept_from(sockets)
        else:
            await self._data_plane.listening.leave(sockets)

    async def drain(self) -> None:
        """Stop taking traffic, let what runs finish, then close everything.

        Not ready at once; still accepting for `timeouts.drain_delay_s`, so that whoever sends here can notice; then up
        to `timeouts.drain_s` for what runs.
        """
        self.draining = True
        if self._data_plane is not None:
            self._data_plane.announce_drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.pause_over.wait(), self.config.timeouts.drain_delay_s)
        self.pause_over.set()
        if self._data_plane is not None:
            await self._data_plane.drain(self.config.timeouts.drain_s)
        await self.close()

    async def close(self) -> None:
        """End everything at once."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._data_plane is not None:
            await self._data_plane.close()
        self.texts.close()
        await self._closing.aclose()
        await asyncio.to_thread(self.recorder.close)

    async def _listen(self) -> dict[str, str]:
        seat, loop = self._seat, asyncio.get_running_loop()
        runner = AdminRunner(build_admin(self._admin, is_private=seat is not None))
        await runner.setup()
        self._closing.push_async_callback(runner.cleanup)
        host, _ = split_address(self.config.listen)
        shares_port = self.config.admin.listen is None and (is_loopback(host) or self.config.admin.token is not None)
        take_over = None
        if shares_port:
            take_over = runner.take_over if seat is None else seat.admin_handoff
        session = open_session(self.config.timeouts.upstream_idle_s)
        self._closing.push_async_callback(session.close)
        self._data_plane = self._plane(
            self.config,
            self.reader,
            self.placer,
            self.fleet,
            self.recorder,
            take_over,
            loop,
            remote=ReplicaTokenizer(session, self._tls.engines, self._engine_key),
            token_cache=self.texts.token_cache,
            tls=self._tls.engines,
            limits=self._limits,
            tracing=self.recorder.tracing,
        )
        engines = EngineRequests(session, self._tls.engines, self._engine_key)
        self._warmer = self._core.warmer(self.config.placement.warming, engines, self.clock)
        self._keep("warming", self._warmer.run)
        data_plane, tls = self._data_plane, self._tls
        own = None if seat is None else seat.sockets
        [url, *_] = await _bound("listen", self.config.listen, lambda: data_plane.start(own, tls.clients))
        if seat is not None:
            seat.admin_path.unlink(missing_ok=True)
            server = await loop.create_unix_server(runner.protocol, str(seat.admin_path))
            self._closing.callback(server.close)
        if seat is not None or self.config.admin.listen is None:
            return {"ready": data_plane.name, data_plane.scheme: url, "admin": url}
        admin_url = await _bound("admin.listen", self.config.admin.listen, lambda: self._listen_admin(runner))
        return {"ready": data_plane.name, data_plane.scheme: url, "admin": admin_url}

    async def _listen_admin(self, runner: AdminRunner) -> str:
        bound = bind(str(self.config.admin.listen))
        self._admin_listening = Listening(asyncio.get_running_loop(), runner.protocol, self._tls.admin)
        self._closing.callback(self._admin_listening.close)
        await self._admin_listening.accept_from(bound)
        return url_of(bound[0], secure=self._tls.admin is not None)

    async def _complete(self, prompt: Prompt, path: str, body: bytes) -> Prompt:
        return prompt if self._data_plane is None else await self._data_plane.complete(prompt, path, body)

    def _text_for(self, name: str | None) -> Text | None:
        texts = self.texts.by_name
        name = self.fleet.sole_model() if name is None else name
        if name is None:
            return next(iter(texts.values())) if len(texts) == 1 else None
        return texts.get(name) or texts.get(self._aliases.get(name, "")) or texts.get(self.fleet.base_model(name) or "")

    def _max_model_len_for(self, name: str | None) -> int | None:
        name = self.fleet.sole_model() if name is None else name
        return None if name is None else self.fleet.max_model_len(name)

    def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(run_again(name, run), name=name))

    async def _sweep(self) -> None:
        while True:
            self.index.sweep()
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _judge(self) -> None:
        """Verdicts that no further request would bring about."""
        while True:
            self._core.proving.settle(self.clock())
            await asyncio.sleep(SETTLE_EVERY_S)


def _aliases_of(config: RouterConfig) -> dict[str, str]:
    return {alias: model.name for model in config.models for alias in model.aliases}


async def _bound(path: str, address: str, start: Callable[[], Awaitable[Bound]]) -> Bound:
    try:
        return await start()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(
            [Problem(path, f"can't listen on {address}: {reason}", "choose a free one")]
        ) from error
