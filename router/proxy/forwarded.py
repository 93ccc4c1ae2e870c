"""Tells engines where a request came from: X-Forwarded-*, Forwarded (RFC 7239) and Via, by configuration.

What a client says of itself is believed only from proxies that the operator trusts: anybody can write these headers.
"""

from __future__ import annotations

import ipaddress
import re

from router.config_clients import ForwardedConfig
from router.proxy.exchange import Headers, Request

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_FOR, _PROTO, _HOST = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"


class ForwardedHeaders:
    """Writes them.

    Args:
        config: Not `off`, or with a name for Via.
    """

    def __init__(self, config: ForwardedConfig) -> None:
        self._config = config
        self._trusted = [ipaddress.ip_network(item, strict=False) for item in config.trusted]

    def mark(self, request: Request, *, secure: bool) -> None:
        """Change a request's headers for engines.

        Args:
            secure: The client's connection is by TLS.
        """
        config = self._config
        headers = request.headers
        if config.mode != "off":
            peer = _host_of(request.client)
            keeps = config.mode == "append" and self._trusts(peer)
            said = [item for item in headers if _is_ours(item[0])] if keeps else []
            headers = [item for item in headers if not _is_ours(item[0])]
            scheme = b"https" if secure else b"http"
            host = next((value for name, value in request.headers if name.lower() == b"host"), b"")
            if config.style in ("x-forwarded", "both"):
                headers = [*headers, *_x_forwarded(said, peer, scheme, host)]
            if config.style in ("forwarded", "both"):
                headers = [*headers, (b"forwarded", _forwarded(said, peer, scheme, host))]
        if config.via is not None:
            headers = [*headers, (b"via", b"%b %b" % (request.version.encode("ascii"), config.via.encode("ascii")))]
        request.headers = headers
        request.crossing = None

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)


def _is_ours(name: bytes) -> bool:
    lower = name.lower()
    return lower.startswith(b"x-forwarded-") or lower == b"forwarded"


def _x_forwarded(said: Headers, peer: str, scheme: bytes, host: bytes) -> Headers:
    def lines(name: bytes) -> list[bytes]:
        return [value for key, value in said if key.lower() == name]

    chain = [*lines(_FOR), peer.encode("ascii")]
    made = [
        (b"x-forwarded-for", b", ".join(chain)),
        (b"x-forwarded-proto", next(iter(lines(_PROTO)), scheme)),
        (b"x-forwarded-host", next(iter(lines(_HOST)), host)),
    ]
    others = [item for item in said if item[0].lower() not in (_FOR, _PROTO, _HOST, b"forwarded")]
    return [*others, *(item for item in made if item[1])]


def _forwarded(said: Headers, peer: str, scheme: bytes, host: bytes) -> bytes:
    node = peer.encode("ascii")
    own = b"for=%b;proto=%b" % (b'"[%b]"' % node if b":" in node else node, scheme)
    if host:
        own += b";host=" + (host if _TOKEN.match(host) else b'"%b"' % host.replace(b"\\", b"").replace(b'"', b""))
    return b", ".join([*(value for key, value in said if key.lower() == b"forwarded"), own])


def _host_of(client: str) -> str:
    """Return the address alone of `HOST:PORT`; IPv6 addresses come without brackets."""
    return client.rpartition(":")[0].partition("%")[0] or "unknown"
