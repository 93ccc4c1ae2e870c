"""What is missing in Redis and why that may be, for operators. No I/O: what was read and the clock are parameters.

Registry and leases are at names that agent and router make from their own settings. Where these differ, neither fails:
the router waits for somebody who writes elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from router.kv.keys import Keys

LOG = logging.getLogger("warmroute.feeds.redis")
RENEWALS = 2
"""A unit that was enrolled anew so often while its lease was not there has it under another name."""
EMPTY_PATIENCE_S = 15.0
"""Without any unit for so long, the router says where it looks."""
MAX_UNITS_KEPT = 1_000


class MissingLeases:
    """Says once what looks like a mistake in settings.

    Args:
        keys: The router's names.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._seen: dict[str, tuple[float, int]] = {}
        self._told: set[str] = set()
        self._since_s: float | None = None
        self._nobody_told = False

    def look(self, enrolled: Mapping[str, float], leases: Mapping[str, bytes | None], now_s: float) -> None:
        """Take a round.

        Args:
            enrolled: When each unit of the registry was renewed, in seconds of Redis' time.
            leases: Their leases, read after `enrolled`.
        """
        if self._since_s is None:
            self._since_s = now_s
        if enrolled:
            self._nobody_told = True
        elif not self._nobody_told and now_s - self._since_s >= EMPTY_PATIENCE_S:
            self._nobody_told = True
            LOG.warning(
                "no agent is registered at %s: agents need this Redis and database, and --namespace %s",
                self._keys.registry,
                self._keys.namespace,
            )
        self._seen = {unit: seen for unit, seen in self._seen.items() if leases.get(unit, b"") is None}
        for unit, renewed_s in enrolled.items():
            if leases.get(unit, b"") is None and unit not in self._told:
                self._missed(unit, renewed_s)

    def _missed(self, unit: str, renewed_s: float) -> None:
        before = self._seen.get(unit)
        if before is None:
            if len(self._seen) < MAX_UNITS_KEPT:
                self._seen[unit] = (renewed_s, 0)
            return
        renewals = before[1] + (renewed_s > before[0])
        self._seen[unit] = (renewed_s, renewals)
        if renewals >= RENEWALS and len(self._told) < MAX_UNITS_KEPT:
            self._told.add(unit)
            LOG.warning(
                "a unit is registered again and again, and its lease is not at %s: its agent's --lanes must be this "
                "router's redis.lanes, %d",
                self._keys.lease(unit),
                self._keys.lanes,
                extra={"unit": unit},
            )
