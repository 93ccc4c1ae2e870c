"""The data plane as a whole: it listens, sends requests where they belong, and drains."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Sequence

from router.config import RouterConfig
from router.config_bounds import LimitsConfig
from router.errors import MethodNotAllowedError, WarmrouteError
from router.proxy.client_connection import ClientConnection
from router.proxy.cors import Cors
from router.proxy.deadlines import Deadlines
from router.proxy.door import AdminHandoff, ByteBudget, Door
from router.proxy.exchange import Exchange
from router.proxy.forward import Forwarder, RequestIds
from router.proxy.forwarded import ForwardedHeaders
from router.proxy.hop_by_hop import client_rank
from router.proxy.listening import Listening, bind, url_of
from router.proxy.models import models_json
from router.proxy.naming import Naming
from router.proxy.paths import AllowedPaths
from router.proxy.pool import EnginePool
from router.proxy.replies import facts_of, own_outcome, refuse, reply_json
from router.proxy.seams import Health, Places, Reader, Records
from router.proxy.tenancy import Tenancy
from router.proxy.turn import Turn
from router.proxy.wishes import WishReader
from router.request.auth.limits import TenantLimits
from router.request.auth.tenants import Tenants
from router.request.prompt import Prompt
from router.request.remote import RemoteTokenizer
from router.request.token_cache import TokenCache
from router.telemetry.tracing import Tracing
from router.tls import EngineTls

MODELS_PATH = "/v1/models"

READING_TURNS = 8
"""Turns of the loop before a drain stops listening: what the kernel holds is accepted in one and read in another."""


class DataPlane:
    """Serves clients.

    Args:
        config: The whole configuration; `listen`, `limits`, `timeouts`, `retry`, `paths` and `models` are used.
        admin_handoff: Takes over connections that ask for health, metrics or admin; None when those have a port of
            their own, and then these paths are 404 here.
        loop: The loop to serve on; the running one if left out.
        remote: Asks replicas about prompts that the router has no tokenizer for.
        token_cache: Where the chains of what they answer are kept.
        tls: How to speak to engines at https:// addresses; None: by the system's CAs.
        limits: What tenants may still use; its own if left out.
        tracing: Chooses requests whose spans are told; None: none.
    """

    name = "router"
    scheme = "http"
    """What the ready line calls it, and its address."""

    def __init__(
        self,
        config: RouterConfig,
        reader: Reader,
        placer: Places,
        fleet: Health,
        recorder: Records,
        admin_handoff: AdminHandoff | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        remote: RemoteTokenizer | None = None,
        token_cache: TokenCache | None = None,
        tls: EngineTls | None = None,
        limits: TenantLimits | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._recorder = recorder
        self._reader = reader
        self._loop = loop or asyncio.get_running_loop()
        self._blinding = os.urandom(32)
        self._started_unix_s = int(time.time())
        self.listening: Listening | None = None
        self.deadlines = Deadlines(self._loop)
        timeouts = config.timeouts
        self.turn = Turn(self._loop)
        self.pool = EnginePool(
            self._loop,
            self.deadlines,
            self.turn,
            idle_s=timeouts.upstream_idle_s,
            connect_s=timeouts.connect_s,
            tls=tls,
        )
        self.forwarder = Forwarder(
            loop=self._loop,
            limits=_reading_limits(config),
            retry=config.retry,
            timeouts=timeouts,
            reader=reader,
            placer=placer,
            fleet=fleet,
            recorder=recorder,
            pool=self.pool,
            deadlines=self.deadlines,
            turn=self.turn,
            client_templates=any(model.allow_client_template for model in config.models),
            remote=remote,
            token_cache=token_cache,
        )
        self.forwarder.tracing = tracing
        self.door = Door(
            loop=self._loop,
            limits=config.limits,
            timeouts=timeouts,
            paths=AllowedPaths(config.paths),
            deadlines=self.deadlines,
            serve=self._route,
            refuse=self._refuse,
            new_request_id=RequestIds(os.urandom(8).hex()),
            budget=ByteBudget(config.limits.buffered_bytes),
            turn=self.turn,
            admin_handoff=admin_handoff,
        )

        in_thread = self.forwarder.prompts.reading.in_thread
        self.naming = Naming(config, fleet, recorder, self.forwarder.forward, in_thread)
        self.tenancy: Tenancy | None = None
        tenants = Tenants.of(config, self._blinding)
        if tenants is not None:
            self.tenancy = self.door.gate = Tenancy(
                tenants,
                limits or TenantLimits(),
                config,
                recorder,
                self._route,
                in_thread,
                fleet.max_model_len,
            )
        self._set_edge(config)

    async def start(
        self, sockets: Sequence[socket.socket] | None = None, tls: ssl.SSLContext | None = None
    ) -> list[str]:
        """Listen; return the bound addresses as URLs.

        Args:
            sockets: Bound already; None: bind to `listen`.
            tls: For clients' connections; None: plain.

        Raises:
            OSError: The address can't be listened on.
        """
        bound = list(sockets) if sockets is not None else bind(self._config.listen)
        self.listening = Listening(self._loop, lambda: ClientConnection(self.door), tls)
        await self.listening.accept_from(bound)
        return [url_of(each, secure=tls is not None) for each in bound]

    async def complete(self, prompt: Prompt, path: str, body: bytes) -> Prompt:
        """Return a prompt that was read with what a replica tells of it, where that is of use, as for a request."""
        told: asyncio.Future[Prompt] = self._loop.create_future()

        def done(prompt: Prompt, _: float) -> None:
            if not told.done():
                told.set_result(prompt)

        asked = self.forwarder.prompts.complete(prompt, 0.0, path, body, done)
        try:
            return await told
        finally:
            if asked is not None:
                asked.cancel()

    def configure(self, config: RouterConfig) -> None:
        """Serve by another configuration from now on; requests that run keep theirs. `listen` stays as it is."""
        self._config = config
        timeouts = config.timeouts
        self.pool.configure(idle_s=timeouts.upstream_idle_s, connect_s=timeouts.connect_s)
        self.forwarder.configure(
            limits=_reading_limits(config),
            retry=config.retry,
            timeouts=timeouts,
            client_templates=any(model.allow_client_template for model in config.models),
        )
        self.door.limits, self.door.timeouts = config.limits, timeouts
        self.door.paths = AllowedPaths(config.paths)
        self.door.budget.limit(config.limits.buffered_bytes)
        self.naming.configure(config)
        self._set_edge(config)
        tenants = Tenants.of(config, self._blinding)
        if self.tenancy is not None and tenants is not None:
            self.tenancy.configure(config, tenants)

    def announce_drain(self) -> None:
        """Go on serving, but end each connection with its next answer, so that clients go elsewhere."""
        self.door.draining = True

    async def drain(self, timeout_s: float) -> None:
        """Take in what has come, stop listening, let what runs finish for up to `timeout_s`, then cut it."""
        self.announce_drain()
        for _ in range(READING_TURNS):
            await asyncio.sleep(0)
        self.door.closing = True
        if self.listening is not None:
            self.listening.close()
        for connection in list(self.door.connections):
            connection.drain()
        if self.door.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.door.emptied.wait(), timeout_s)
        await self.close()

    async def close(self) -> None:
        """Close everything at once."""
        if self.listening is not None:
            self.listening.close()
        for connection in list(self.door.connections):
            connection.kill()
        if self.door.connections:
            await self.door.emptied.wait()
        self.pool.close()
        self.forwarder.close()
        self.deadlines.close()

    def _set_edge(self, config: RouterConfig) -> None:
        """Have requests come in by the shortest way that the configuration allows."""
        self.door.aborts_half_closed = config.abort_on_half_close
        self._cors = Cors(config.cors) if config.cors.origins else None
        wanted = config.forwarded.mode != "off" or config.forwarded.via is not None
        self._forwarded = ForwardedHeaders(config.forwarded) if wanted else None
        self._next = self._route if self.tenancy is None else self.tenancy.serve
        self._takes_rank = config.upstream.client_rank
        wishes = WishReader(config.placement)
        self._wishes = wishes if wishes.is_needed else None
        self._reader.tells_conversations = wishes.by_conversation
        is_plain = self._cors is None and self._forwarded is None and not self._takes_rank and self._wishes is None
        self.door.serve = self._next if is_plain else self._enter

    def _enter(self, exchange: Exchange) -> None:
        if self._cors is not None:
            facts, outcome = facts_of(exchange), own_outcome(exchange, 204, None)
            if self._cors.answer_preflight(exchange):
                self._recorder.accepted()
                self._recorder.finished(None, outcome, facts)
                return
            self._cors.mark(exchange.request)
        if self._forwarded is not None:
            secure = self.listening is not None and self.listening.secure
            self._forwarded.mark(exchange.request, secure=secure)
        if self._takes_rank:
            exchange.request.rank = client_rank(exchange.request)
        if self._wishes is not None:
            try:
                self._wishes.note(exchange.request)
            except WarmrouteError as error:
                refuse(self._recorder, exchange, error)
                return
        self._next(exchange)

    def _route(self, exchange: Exchange) -> None:
        if exchange.request.path == MODELS_PATH:
            self._serve_models(exchange)
        elif self.naming.names:
            self.naming.serve(exchange)
        else:
            self.forwarder.forward(exchange)

    def _serve_models(self, exchange: Exchange) -> None:
        if exchange.request.method not in ("GET", "HEAD"):
            allow = [(b"allow", b"GET, HEAD")]
            refuse(self._recorder, exchange, MethodNotAllowedError(f"{MODELS_PATH} is read with GET"), allow)
            return
        self._recorder.accepted()
        body = models_json(self._fleet.replicas.values(), self._started_unix_s, self.naming.names)
        facts, outcome = facts_of(exchange), own_outcome(exchange, 200, None)
        reply_json(exchange, 200, body)
        self._recorder.finished(None, outcome, facts)

    def _refuse(self, exchange: Exchange, error: WarmrouteError) -> None:
        if self._cors is not None:
            self._cors.mark(exchange.request)  # or a page in a browser could not read why
        refuse(self._recorder, exchange, error)


def _reading_limits(config: RouterConfig) -> LimitsConfig:
    """Return the limits, with nothing read on the loop where a template may come that nobody signed.

    Such a template is rendered in a process of its own, and that is waited for (`router.request.isolated_chat`).
    """
    may_come = config.redis is not None and any(model.tokenizer is None for model in config.models)
    if may_come and config.registration.secret is None:
        return config.limits.model_copy(update={"inline_body_bytes": 0})
    return config.limits
