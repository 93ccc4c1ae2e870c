"""Pages in browsers that may call the router (CORS, the Fetch standard): preflights are answered here, without a key.

Where the configuration names no origins nothing of this is done, and what engines say passes.
"""

from __future__ import annotations

from router.config_clients import CorsConfig
from router.proxy.exchange import Exchange, Headers, Request

_METHODS = b"GET, HEAD, POST, OPTIONS"
_ASKED_HEADERS = b"access-control-request-headers"
_ASKED_METHOD = b"access-control-request-method"


class Cors:
    """Answers browsers.

    Args:
        config: With at least one origin.
    """

    def __init__(self, config: CorsConfig) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in config.origins)
        self._any_origin = b"*" in self._origins
        self._headers = ", ".join(config.headers).encode("ascii")
        self._any_header = "*" in config.headers
        self._expose = ", ".join(config.expose).encode("ascii")
        self._credentials = config.credentials
        self._max_age_s = config.max_age_s

    def mark(self, request: Request) -> None:
        """Note what the answer tells the browser, instead of what an engine says."""
        lines = b"vary: Origin\r\n"
        if self._allows(_one(request, b"origin")):
            lines += b"".join(b"%b: %b\r\n" % pair for pair in self._grant(request))
            if self._expose:
                lines += b"access-control-expose-headers: %b\r\n" % self._expose
        request.cors = lines

    def answer_preflight(self, exchange: Exchange) -> bool:
        """Answer, if it is one. To other origins nothing is granted, so the browser sends nothing."""
        request = exchange.request
        method, origin = _one(request, _ASKED_METHOD), _one(request, b"origin")
        if request.method != "OPTIONS" or method is None or origin is None:
            return False
        headers: Headers = [(b"x-request-id", request.request_id.encode("ascii"))]
        vary = b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
        if self._allows(origin):
            asked = _one(request, _ASKED_HEADERS)
            headers += self._grant(request)
            headers.append((b"access-control-allow-methods", _METHODS))
            allowed = asked if self._any_header else self._headers
            if allowed:
                headers.append((b"access-control-allow-headers", allowed))
            headers.append((b"access-control-max-age", b"%d" % self._max_age_s))
        request.cors = None
        exchange.reply(204, [*headers, (b"vary", vary)], b"")
        return True

    def _allows(self, origin: bytes | None) -> bool:
        return origin is not None and (self._any_origin or origin in self._origins)

    def _grant(self, request: Request) -> Headers:
        origin = b"*" if self._any_origin else _one(request, b"origin") or b""
        granted = [(b"access-control-allow-origin", origin)]
        if self._credentials:
            granted.append((b"access-control-allow-credentials", b"true"))
        return granted


def without_engines_cors(lines: bytes) -> bytes:
    """Return an answer's header lines without what the engine says of other origins."""
    kept = [line for line in lines.split(b"\r\n") if line and not line.lower().startswith(b"access-control-")]
    return b"".join(line + b"\r\n" for line in kept)


def _one(request: Request, name: bytes) -> bytes | None:
    return next((value for key, value in request.headers if key.lower() == name), None)
