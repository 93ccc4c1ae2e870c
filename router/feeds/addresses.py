"""Addresses of engines: one spelling for each, and which of them a lease may name."""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit


def normalised_url(text: str) -> str:
    """Return `http://HOST:PORT` for any spelling of it, so that two sources mean the same replica.

    Case, a missing scheme, a trailing slash and the default port make no difference; `localhost` is 127.0.0.1, and an
    IPv6 address is in its short form, in brackets.

    Raises:
        ValueError: It is no http address, or has a path, query or credentials.
    """
    parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
    if parts.scheme.lower() != "http":
        raise ValueError("only http:// addresses are supported")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("an address has no path, query or credentials")
    host = (parts.hostname or "").rstrip(".")
    if not host or any(character.isspace() for character in host):
        raise ValueError("an address has a host")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        host = f"[{address.compressed}]" if address.version == 6 else address.compressed
    return f"http://{host}:{parts.port or 80}"


class AllowedAddresses:
    """`registration.allow`: CIDRs and host patterns. Empty allows all.

    Names are not resolved: an address must match a CIDR as it stands, a name must match a pattern.

    Raises:
        ValueError: An entry is neither.
    """

    def __init__(self, allow: Sequence[str]) -> None:
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._patterns: list[str] = []
        for entry in allow:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError as error:
                if "/" in entry or not entry:
                    raise ValueError(f"{entry!r} is neither a CIDR nor a host pattern") from error
                self._patterns.append(entry.lower())

    def allows(self, url: str) -> bool:
        """Tell whether a lease may name this (normalised) url."""
        if not self._networks and not self._patterns:
            return True
        host = urlsplit(url).hostname or ""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return any(fnmatch.fnmatchcase(host, pattern) for pattern in self._patterns)
        # A pattern is for names. Matching digits as text would let `10.*` stand for more than was meant.
        return any(address in network for network in self._networks)
