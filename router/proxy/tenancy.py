"""What tenants change for a request: who it is from (before its body is read), the salt in its body, its credentials.

It stands between the clients' connections and the forwarder, and is not there at all without tenants.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from router.config import RouterConfig
from router.errors import InvalidApiKeyError, OverloadedError, WarmrouteError
from router.proxy.accounts import TenantRequest
from router.proxy.exchange import Exchange, Headers, Request
from router.proxy.replies import facts_of, own_outcome, refuse
from router.proxy.seams import Records
from router.request.auth.decoding import coding_of, gunzipped
from router.request.auth.isolation import carries_salt, salted
from router.request.auth.keys import AUTHORIZATION, KEY_HEADERS
from router.request.auth.limits import TenantLimits
from router.request.auth.tenants import Tenant, Tenants

_ENCODING = b"content-encoding"
_BODILESS = frozenset(("GET", "HEAD", "OPTIONS"))
InThread = Callable[[Callable[[Callable[[], None]], bytes]], "asyncio.Future[bytes]"]

_log = logging.getLogger(__name__)


class Tenancy:
    """Lets tenants' requests in, and prepares them for engines.

    Attributes:
        tenants: Replaced as a whole when the configuration is read anew; requests that run keep theirs.
        limits: What each may still use; outlives `tenants`.

    Args:
        forward: Takes requests that are ready to go on.
        in_thread: Has a thread do what is long.
        longest: From a model's name to its longest prompt and answer together, in tokens.
    """

    def __init__(
        self,
        tenants: Tenants,
        limits: TenantLimits,
        config: RouterConfig,
        recorder: Records,
        forward: Callable[[Exchange], None],
        in_thread: InThread,
        longest: Callable[[str], int | None],
    ) -> None:
        self.limits = limits
        self._recorder = recorder
        self._forward = forward
        self._in_thread = in_thread
        self._longest = longest
        self.configure(config, tenants)

    def configure(self, config: RouterConfig, tenants: Tenants) -> None:
        """Take over other tenants, limits and credentials, for requests from now on."""
        self.tenants = tenants
        self.limits.follow(tenants, time.monotonic())
        self._body_bytes = config.limits.body_bytes
        self._inline_body_bytes = config.limits.inline_body_bytes
        self._assumed_answer_tokens = config.limits.assumed_answer_tokens
        self._gzip_ratio = config.isolation.gzip_ratio
        key = config.upstream.api_key
        self._credential: Headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode("ascii"))]

    def admit(self, request: Request) -> WarmrouteError | None:
        """Find out whose request it is, and count it; return why it may not come in."""
        try:
            tenant = self.tenants.of_request(request.headers)
        except InvalidApiKeyError as error:
            # A browser asks without the key whether it may send one.
            return None if _is_preflight(request) else error
        request.admitted_s = time.monotonic()
        request.account = TenantRequest(tenant, self.limits, self._assumed_answer_tokens, self._longest)
        try:
            self.limits.take_request(tenant, time.monotonic())
        except WarmrouteError as error:
            return error
        return None

    def serve(self, exchange: Exchange) -> None:
        """Send a request that was let in on its way, when it is ready to go."""
        request = exchange.request
        request.headers = [item for item in request.headers if item[0].lower() not in KEY_HEADERS] + self._credential
        request.crossing = None
        account = request.account
        if not isinstance(account, TenantRequest) or not account.tenant.isolated:
            self._forward(exchange)
            return
        try:
            if (request.method in _BODILESS and not request.body) or not carries_salt(request.path):
                self._forward(exchange)
                return
            work = self._salting(exchange, account.tenant)
            if len(request.body) > self._inline_body_bytes:
                _Salting(self, exchange, self._in_thread(work))
                return
            body = work(_no_pause)
        except WarmrouteError as error:
            refuse(self._recorder, exchange, error)
            return
        self._salted(exchange, body)

    def _salting(self, exchange: Exchange, tenant: Tenant) -> Callable[[Callable[[], None]], bytes]:
        """Return the work that makes the body with the salt; what it may need of memory is counted already."""
        request = exchange.request
        body = request.body
        if not coding_of([value for name, value in request.headers if name.lower() == _ENCODING]):
            return lambda pause: salted(body, tenant)
        if not exchange.hold_body(min(self._body_bytes, self._gzip_ratio * len(body)) + len(body)):
            raise _no_memory()
        request.headers = [item for item in request.headers if item[0].lower() != _ENCODING]
        decode = partial(gunzipped, body, self._body_bytes, self._gzip_ratio)
        return lambda pause: salted(decode(pause), tenant)

    def _salted(self, exchange: Exchange, body: bytes) -> None:
        if not exchange.hold_body(len(body)):
            refuse(self._recorder, exchange, _no_memory())
            return
        exchange.request.body = body
        self._forward(exchange)

    def _left(self, exchange: Exchange) -> None:
        """The client left meanwhile."""
        self._recorder.accepted()
        outcome = own_outcome(exchange, 0, None)
        outcome.status, outcome.aborted = None, True
        self._recorder.finished(None, outcome, facts_of(exchange))

    def _worked(self, exchange: Exchange, work: asyncio.Future[bytes]) -> None:
        error = work.exception()
        if isinstance(error, WarmrouteError):
            refuse(self._recorder, exchange, error)
        elif error is not None:
            _log.error("internal error while setting a cache salt", exc_info=error)
            refuse(self._recorder, exchange, WarmrouteError("internal error; the router's log has it"))
        else:
            self._salted(exchange, work.result())


class _Salting:
    """A body that gets its salt in a thread. The exchange's listener meanwhile."""

    def __init__(self, tenancy: Tenancy, exchange: Exchange, work: asyncio.Future[bytes]) -> None:
        self._tenancy = tenancy
        self._exchange: Exchange | None = exchange
        exchange.listener = self
        work.add_done_callback(self._done)

    def _done(self, work: asyncio.Future[bytes]) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            if not work.cancelled():
                work.exception()  # nobody else asks for it
            return
        exchange.listener = None
        if not work.cancelled():
            self._tenancy._worked(exchange, work)

    def client_left(self) -> None:
        """The client is gone."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.listener = None
            self._tenancy._left(exchange)

    def writing_paused(self) -> None:
        """Nothing is written yet."""

    def writing_resumed(self) -> None:
        """Nor is it now."""


def _is_preflight(request: Request) -> bool:
    """Tell whether it is a browser's question (CORS), which never carries a key nor a body."""
    names = {name.lower() for name, _ in request.headers}
    wanted = {b"origin", b"access-control-request-method"}
    return request.method == "OPTIONS" and wanted <= names and not request.framed and AUTHORIZATION not in names


def _no_memory() -> OverloadedError:
    return OverloadedError("the bodies of running requests fill `limits.buffered_bytes`", retry_after_s=1)


def _no_pause() -> None:
    pass
