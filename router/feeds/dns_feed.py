"""Replicas that are the addresses of a name: a headless Service, or any name with a record for each engine.

DNS says who is there and no more, and says it badly: a resolver that fails knows nothing, one that just started knows
no name, some rotate through part of their records. So a new address joins once an engine answers there, and one that
vanished leaves only when it was missing from several answers in a row. A name without any address withdraws nobody
whose engine answers its probes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable

from router.config_discovery import DnsSource
from router.feeds.dns_lookup import Found, Lookup, LookupFailedError
from router.feeds.probed import Member
from router.kv.addresses import normalised_url
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds.dns")
JITTER_SHARE = 0.1
"""Routers that started together must not ask together for ever."""


class Addresses:
    """Which addresses count as there. No I/O.

    Args:
        gone_after: Complete answers in a row that must lack an address.
    """

    def __init__(self, gone_after: int) -> None:
        self._gone_after = gone_after
        self._missed: dict[str, int] = {}

    def take(self, found: Found, answers: Callable[[str], bool]) -> list[str]:
        """Take an answer, and return the addresses that count now, sorted.

        Args:
            answers: Tells whether the engine at an address passes its probes.
        """
        for address in found.addresses:
            self._missed[address] = 0
        if found.complete:
            for address in [address for address in self._missed if address not in found.addresses]:
                self._missed[address] += 1
                is_kept = not found.addresses and answers(address)
                if self._missed[address] >= self._gone_after and not is_kept:
                    del self._missed[address]
        return sorted(self._missed)


class DnsWatch:
    """Follows one name.

    Args:
        source: The configuration's.
        changed: Called with the replicas after each answer.
        passes: Tells whether a replica's engine passes its probes, by the replica's name.
        heard: Called with whether the last lookup had an answer.
        lookup: What asks; its faults are `LookupFailedError`.
    """

    def __init__(
        self,
        source: DnsSource,
        changed: Callable[[list[Member]], None],
        passes: Callable[[str], bool],
        heard: Callable[[bool], None],
        metrics: Metrics,
        lookup: Callable[[], Awaitable[Found]] | None = None,
    ) -> None:
        self._source = source
        self._changed = changed
        self._passes = passes
        self._heard = heard
        self._metrics = metrics
        self._lookup = Lookup(source) if lookup is None else lookup
        self._addresses = Addresses(source.gone_after)
        self._failing = False
        self._empty = False

    async def run(self) -> None:
        """Look the name up every `every_s`, until cancelled."""
        while True:
            await self._round()
            await asyncio.sleep(self._source.every_s * random.uniform(1 - JITTER_SHARE, 1 + JITTER_SHARE))

    async def _round(self) -> None:
        name = self._source.name
        try:
            found = await self._lookup()
        except LookupFailedError as error:
            if not self._failing:
                LOG.warning("the lookup of %s fails, and its replicas stay as they are: %s", name, error)
            self._failing = True
            self._metrics.discovery_failed("dns")
            self._heard(False)
            return
        if self._failing:
            LOG.info("%s is looked up again", name)
        if not found.addresses and not self._empty:
            LOG.warning("%s has no addresses; replicas that answer their probes stay", name)
        self._failing, self._empty = False, not found.addresses
        addresses = self._addresses.take(found, lambda address: self._passes(replica_name(self._source, address)))
        self._changed([self._member(address) for address in addresses])
        self._heard(True)

    def _member(self, address: str) -> Member:
        return Member(replica_name(self._source, address), _url_of(self._source, address))


def replica_name(source: DnsSource, address: str) -> str:
    """Return an address' name, the same in every router: clients see names, and none tells an address by itself."""
    digest = hashlib.blake2b(_url_of(source, address).encode(), digest_size=4).hexdigest()
    return f"{source.name.partition('.')[0]}-{digest}"


def _url_of(source: DnsSource, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return normalised_url(f"{source.scheme}://{host}:{source.port}")
