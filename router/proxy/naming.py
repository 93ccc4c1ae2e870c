"""Puts the model's own name into requests that use another one, before anything else reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from router.config import RouterConfig
from router.errors import WarmrouteError
from router.proxy.exchange import Exchange
from router.proxy.replies import refuse
from router.proxy.seams import Health, Records
from router.request.names import ModelNames

InThread = Callable[[Callable[[Callable[[], None]], bytes]], "asyncio.Future[bytes]"]
_log = logging.getLogger(__name__)


class Naming:
    """Stands before the forwarder where the configuration has aliases or splits.

    Args:
        forward: Takes requests that are ready to go on.
        in_thread: Has a thread do what is long.
    """

    def __init__(
        self,
        config: RouterConfig,
        fleet: Health,
        recorder: Records,
        forward: Callable[[Exchange], None],
        in_thread: InThread,
    ) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._forward = forward
        self._in_thread = in_thread
        self._waiting: set[_Waiting] = set()
        self.configure(config)

    def configure(self, config: RouterConfig) -> None:
        """Take over other names, for requests from now on."""
        self._inline_body_bytes = config.limits.inline_body_bytes
        self.names = names_of(config, self._fleet)

    def serve(self, exchange: Exchange) -> None:
        """Send a request on, with the model's own name in it."""
        request = exchange.request
        if not request.body or not self.names:
            self._forward(exchange)
            return
        kind = next((value for name, value in request.headers if name.lower() == b"content-type"), b"")
        if len(request.body) > self._inline_body_bytes:
            names, body = self.names, request.body
            waiting = _Waiting(self, exchange)
            self._waiting.add(waiting)
            waiting.follow(self._in_thread(lambda pause: names.renamed(body, kind)))
            return
        self.go_on(exchange, self.names.renamed(request.body, kind))

    def go_on(self, exchange: Exchange, body: bytes) -> None:
        """Send a request on with this body."""
        if body is not exchange.request.body:
            exchange.request.body = body
        self._forward(exchange)

    def done(self, waiting: _Waiting) -> None:
        """A thread has answered, or nobody waits for it any more."""
        self._waiting.discard(waiting)

    def failed(self, exchange: Exchange) -> None:
        """Refuse a request for a fault of the router's own."""
        _log.exception("internal error while naming a model")
        refuse(self._recorder, exchange, WarmrouteError("internal error; the router's log has it"))


class _Waiting:
    """A long body in a thread's hands: the exchange's listener meanwhile."""

    def __init__(self, naming: Naming, exchange: Exchange) -> None:
        self._naming = naming
        self._exchange: Exchange | None = exchange
        exchange.listener = self

    def follow(self, renamed: asyncio.Future[bytes]) -> None:
        renamed.add_done_callback(self._renamed)

    def _renamed(self, renamed: asyncio.Future[bytes]) -> None:
        exchange, self._exchange = self._exchange, None
        self._naming.done(self)
        if exchange is None or renamed.cancelled():
            return
        exchange.listener = None
        try:
            body = renamed.result()
        except Exception:
            self._naming.failed(exchange)
        else:
            self._naming.go_on(exchange, body)

    def client_left(self) -> None:
        """Nobody waits for the answer."""
        self._exchange = None

    def writing_paused(self) -> None:
        """Nothing is written yet."""

    def writing_resumed(self) -> None:
        """Nothing is written yet."""


def names_of(config: RouterConfig, fleet: Health) -> ModelNames:
    """Return the configuration's names, as the fleet serves them."""
    aliases = {alias: model.name for model in config.models for alias in model.aliases}
    splits = {name: [(each.model, each.weight) for each in targets] for name, targets in config.splits.items()}
    return ModelNames(aliases, splits, lambda: [replica.models for replica in list(fleet.replicas.values())])
