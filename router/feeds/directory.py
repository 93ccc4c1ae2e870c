"""Who is in the fleet when several sources tell of one replica.

A replica is its address. Where an agent registered the address of a configured replica, both are the same one and the
agent's facts hold, its name included; when it goes, the configured one is back. So it is with every two sources: the
one that knows more holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from router.fleet.facts import ReplicaFacts
from router.fleet.fleet import Fleet

LOG = logging.getLogger("warmroute.feeds")
SOURCES = ("redis", "static", "kubernetes", "dns")
"""Whose facts hold, first come first."""


class Directory:
    """The one place from which feeds announce and withdraw.

    Args:
        fleet: What is kept up to date.
        clock: The fleet's clock, in seconds.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock
        self._of: dict[str, dict[str, ReplicaFacts]] = {source: {} for source in SOURCES}
        self._announced: dict[str, ReplicaFacts] = {}
        self._drained: set[str] = set()

    def announce(self, facts: ReplicaFacts) -> bool:
        """Add a replica or renew its facts; False when its name belongs to another address."""
        holder = next((url for url, held in self._announced.items() if held.replica_id == facts.replica_id), None)
        if holder is not None and holder != facts.url:
            return False
        self._of[facts.source][facts.url] = facts
        self._settle(facts.url)
        return True

    def withdraw(self, source: str, url: str, replica_id: str) -> None:
        """A source no longer knows a replica; nothing happens when another one has its address by now."""
        held = self._of[source].get(url)
        if held is not None and held.replica_id == replica_id:
            del self._of[source][url]
            self._settle(url)

    def drain(self, replica_id: str, *, draining: bool) -> None:
        """An operator has a replica take no new requests, or lets it again. Holds whenever one of this name is here."""
        (self._drained.add if draining else self._drained.discard)(replica_id)
        for sources in self._of.values():
            for url in [url for url, facts in sources.items() if facts.replica_id == replica_id]:
                self._settle(url)

    def is_registered(self, url: str) -> bool:
        """Tell whether an agent registered this address."""
        return url in self._of["redis"]

    def _settle(self, url: str) -> None:
        known = [facts for facts in (held.get(url) for held in self._of.values()) if facts is not None]
        wanted = known[0] if known else None
        if wanted is not None and not self._drained.isdisjoint(facts.replica_id for facts in known):
            wanted = replace(wanted, draining=True)
        present = self._announced.get(url)
        if wanted == present:
            return
        if present is not None and (wanted is None or wanted.replica_id != present.replica_id):
            self._fleet.withdraw(present.replica_id)
            del self._announced[url]
            LOG.info("replica left", extra={"replica": present.replica_id, "source": present.source})
        if wanted is not None:
            if url not in self._announced:
                LOG.info("replica joined", extra={"replica": wanted.replica_id, "source": wanted.source})
            self._announced[url] = wanted
            self._fleet.announce(wanted, self._clock())
