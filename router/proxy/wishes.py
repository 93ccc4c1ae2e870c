"""What a request's headers ask of its placement: another policy, a session."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from router.config_placement import PlacementConfig
from router.errors import PolicyRefusedError
from router.proxy.exchange import Request
from router.proxy.hop_by_hop import safe_value
from router.scheduling.wishes import Wishes

POLICY_HEADER = b"x-warmroute-policy"
MAX_SHOWN = 64


class WishReader:
    """Reads heads, as far as the configuration lets them ask for anything.

    Attributes:
        is_needed: Whether there is anything to look for in a request's head.
        by_conversation: Whether its body names its session.
    """

    def __init__(self, config: PlacementConfig) -> None:
        self._policies = {name.encode("ascii"): name for name in config.request_policies}
        affinity = config.affinity
        self._header = self._cookie = b""
        if affinity is not None and affinity.name is not None:
            name = affinity.name.encode("ascii")
            if affinity.by == "header":
                self._header = name.lower()
            else:
                self._cookie = name
        self.by_conversation = affinity is not None and affinity.by == "conversation"
        self.is_needed = bool(self._policies or self._header or self._cookie)

    def note(self, request: Request) -> None:
        """Note in a request what it asks for.

        Raises:
            PolicyRefusedError: It asks for a policy that it may not choose, or that there is none of.
        """
        policy = session = None
        for name, value in request.headers:
            lower = name.lower()
            if lower == POLICY_HEADER and self._policies:
                policy = self._policy(value)
            elif lower == self._header:
                session = value or None
            elif lower == b"cookie" and self._cookie:
                session = _cookie(value, self._cookie) or session
        if policy is not None or session is not None:
            request.wishes = Wishes(policy, None if session is None else session_number(request, session))

    def _policy(self, value: bytes) -> str:
        policy = self._policies.get(value.strip())
        if policy is None:
            shown = safe_value(value[:MAX_SHOWN].decode("latin-1")).decode("ascii")
            allowed = ", ".join(self._policies.values())
            raise PolicyRefusedError(
                f"there is no policy {shown!r} that a request may ask for; allowed are: {allowed}",
                param=POLICY_HEADER.decode("ascii"),
            )
        return policy


def session_number(request: Request, name: bytes) -> int:
    """Return the number of a session, the same at every router; equal names of two tenants are two sessions."""
    tenant = b"" if request.account is None else request.account.name.encode("utf-8")
    return xxhash.xxh3_64_intdigest(b"%d %b%b" % (len(tenant), tenant, name))


def _cookie(value: bytes, name: bytes) -> bytes | None:
    """Return a cookie's value in a Cookie header."""
    pairs: Sequence[bytes] = value.split(b";")
    for pair in pairs:
        key, equals, found = pair.strip(b" \t").partition(b"=")
        if equals and key == name:
            return found.strip(b'"') or None
    return None
