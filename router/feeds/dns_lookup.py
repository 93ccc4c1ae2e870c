"""The addresses of a name, by DNS. dnspython: it tells a name without records from a server that fails, reads
/etc/resolv.conf with its search list, and asks again over TCP where an answer was cut short.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import dns.asyncresolver
import dns.exception
import dns.resolver

from router.config_discovery import DnsSource, split_nameserver

TIMEOUT_S = 5.0
MAX_ADDRESSES = 1_000
"""An answer over TCP may be 64 KB; who answers must not fill the router's memory with replicas."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one lookup found.

    Attributes:
        addresses: IPv4 and IPv6, in their usual text.
        complete: Both kinds of record were answered, so that an address that is missing is not there.
    """

    addresses: frozenset[str]
    complete: bool = True


class LookupFailedError(Exception):
    """No name server gave an answer: nothing is known now."""


class Lookup:
    """Looks up the A and AAAA records of one name.

    Args:
        source: The name, and the name server where it is not the system's.
    """

    def __init__(self, source: DnsSource) -> None:
        self._source = source

    async def __call__(self) -> Found:
        """Look the name up now. An empty answer is one where it has no records, or does not exist.

        Raises:
            LookupFailedError: No server answered in time, or they refused or failed.
        """
        try:
            resolver = self._resolver()  # anew each time: /etc/resolv.conf may change
        except (dns.exception.DNSException, OSError) as error:
            raise LookupFailedError(f"{type(error).__name__}: {error}") from error
        answers = await asyncio.gather(*(self._records(resolver, kind) for kind in ("A", "AAAA")))
        failures = [answer for answer in answers if isinstance(answer, str)]
        if len(failures) == len(answers):
            raise LookupFailedError(failures[0])
        found = sorted({address for answer in answers if not isinstance(answer, str) for address in answer})
        return Found(frozenset(found[:MAX_ADDRESSES]), not failures)

    def _resolver(self) -> dns.asyncresolver.Resolver:
        if self._source.nameserver is None:
            resolver = dns.asyncresolver.Resolver()
        else:
            host, port = split_nameserver(self._source.nameserver)
            resolver = dns.asyncresolver.Resolver(configure=False)
            resolver.nameservers, resolver.port = [host], port
        resolver.timeout = TIMEOUT_S / 2  # of one server, so that a second one has its turn
        return resolver

    async def _records(self, resolver: dns.asyncresolver.Resolver, kind: str) -> list[str] | str:
        """Return the addresses, or why there is no answer."""
        try:
            answer = await resolver.resolve(
                self._source.name, kind, search=True, lifetime=TIMEOUT_S, raise_on_no_answer=False
            )
        except dns.resolver.NXDOMAIN:
            return []
        except (dns.exception.DNSException, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return [record.address for record in answer]
