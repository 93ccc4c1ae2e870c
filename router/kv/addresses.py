"""Addresses of engines: one spelling for each, what agents may advertise, and which of them a lease may name. Pure."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\Z")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,253}\Z")


def normalised_url(text: str) -> str:
    """Return `http://HOST:PORT` (or https) for any spelling of it, so that two sources mean the same replica.

    Case, a missing scheme, a trailing slash and the default port make no difference; an IPv6 address is in its short
    form, in brackets. `localhost` is 127.0.0.1, but in https:// addresses: certificates bear names.

    Raises:
        ValueError: It is no http or https address, has a path, query, fragment or credentials, or a host or port that
            can't be.
    """
    parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError("only http:// and https:// addresses are supported")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("an address has no path, query or credentials")
    host = (parts.hostname or "").rstrip(".")
    if not host or any(character.isspace() for character in host):
        raise ValueError("an address has a host")
    if parts.port == 0:
        raise ValueError("a port is a number from 1 to 65535")
    if host == "localhost" and scheme == "http":
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        check_host_name(host)
    else:
        host = f"[{address.compressed}]" if address.version == 6 else address.compressed
    return f"{scheme}://{host}:{parts.port or _PORTS[scheme]}"


def check_host_name(host: str) -> None:
    """Make sure that a name can be looked up.

    Names in other scripts are written as their `xn--` form: a resolver never sees anything else.

    Raises:
        ValueError: A part between dots is empty, longer than 63 characters or of characters that no host has, or the
            whole is longer than 253.
    """
    if len(host) > 253 or not all(map(_LABEL.match, host.removesuffix(".").split("."))):
        raise ValueError("a host name has parts of 1 to 63 letters, digits and hyphens, 253 characters in all")


def check_host(host: str) -> str | None:
    """Return what is wrong with a host's name or address; None when it can be connected to."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            check_host_name(host)
        except ValueError as error:
            return str(error)
    return None


def check_engine_url(text: str) -> str | None:
    """Return what is wrong with an engine's address that routers are to use, with the remedy; None when nothing is."""
    try:
        if not text.lower().startswith(("http://", "https://")):
            raise ValueError("only http:// and https:// addresses are supported")
        normalised_url(text)
    except ValueError as error:
        return f"{error}: routers reach engines at http://HOST:PORT or https://HOST:PORT"
    return None


def check_allow(entry: str) -> str | None:
    """Return what is wrong with an entry of `registration.allow`; None when nothing is."""
    try:
        AllowedAddresses([entry])
    except ValueError as error:
        return str(error)
    return None


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
                if not _PATTERN.match(entry):
                    raise ValueError(
                        f"{entry!r} is neither a CIDR (10.0.0.0/8) nor a host pattern (*.engines.svc)"
                    ) from error
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
