"""Who gets an answer of admin's: the token, the name that it was asked by, and what is told where tenants are set."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from router.admin.drains import CrossSiteError, is_address
from router.admin.endpoints import ENDPOINTS
from router.admin.replies import UnauthorizedError
from router.config import RouterConfig, is_loopback, split_address
from router.errors import RequestError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CachedNotToldError(RequestError):
    """With tenants this is off, since it tells what they cached: set `admin.tells_cached`."""

    code = "cached_not_told"
    http_status = 403


def may_tell(config: RouterConfig) -> None:
    """Raise CachedNotToldError where what is cached is not to be told."""
    told = config.admin.tells_cached
    if not (config.tenants is None if told is None else told):
        raise CachedNotToldError("with tenants this tells what they cached: it takes `admin.tells_cached: true`")


def host_check(config: Callable[[], RouterConfig]) -> Middleware:
    """Return what keeps pages in browsers out that had their own name pointed at this machine.

    Without a token, admin on a loopback address is open to whoever runs here; a browser that runs here shows what a
    page may read by the name that it asks for.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        now = config()
        if now.admin.token is None and not _is_open(request) and not is_address(request.host):
            host, _ = split_address(now.admin.listen or now.listen)
            if is_loopback(host):
                raise CrossSiteError("without admin.token this is answered under an IP address or localhost alone")
        return await handler(request)

    return cast("Middleware", check)


def token_check(config: Callable[[], RouterConfig]) -> Middleware:
    """Return what lets only those in who have the token, where one is wanted."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = config().admin.token
        if wanted is not None and not _is_open(request):
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            # As bytes: compare_digest refuses strings that are not ASCII. Surrogates are how aiohttp keeps raw bytes.
            same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), wanted.encode())
            if scheme.lower() != "bearer" or not same:
                raise UnauthorizedError("the admin token is missing or wrong")
        return await handler(request)

    return cast("Middleware", check)


_OPEN_PATHS = frozenset(row.path for row in ENDPOINTS if row.is_open)
"""As aiohttp has them: none of them needs renaming."""


def _is_open(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical in _OPEN_PATHS
