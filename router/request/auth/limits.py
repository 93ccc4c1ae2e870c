"""Requests and tokens that each tenant may still use. Kept by name, so that it outlives the configuration's reload.

Tokens are reserved before a request is sent, by the prompt's length and the answer's limit, and corrected when the
engine has told what it used. A request that used nothing (no replica answered) gives all of it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from router.errors import RateLimitedError
from router.request.auth.buckets import Bucket
from router.request.auth.tenants import Tenant

REQUESTS, TOKENS = "requests", "tokens"
Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class TokenReservation:
    """Tokens set aside for one request; settled once."""

    bucket: Bucket
    tokens: int
    settled: bool = False

    def settle(self, used_tokens: int, now_s: float) -> None:
        """The request used so many."""
        if not self.settled:
            self.settled = True
            self.bucket.give(self.tokens - used_tokens, now_s)


class TenantLimits:
    """The buckets of all tenants that have limits.

    Args:
        share: What this process may give of each limit until it is told (`share`), over 0 and up to 1.
    """

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._shares: dict[tuple[str, str], float] = {}

    def take_request(self, tenant: Tenant, now_s: float) -> None:
        """Count a request.

        Raises:
            RateLimitedError: It is one too many.
        """
        if tenant.requests_per_minute is None:
            return
        wait_s = self._bucket(tenant.name, REQUESTS, tenant.requests_per_minute, now_s).take(1, now_s)
        if wait_s:
            raise _limited(f"the limit of {tenant.requests_per_minute} requests a minute is reached", wait_s)

    def reserve_tokens(self, tenant: Tenant, tokens: int, now_s: float) -> TokenReservation | None:
        """Set tokens aside; None where the tenant has no such limit.

        Raises:
            RateLimitedError: They are not there.
        """
        limit = tenant.tokens_per_minute
        if limit is None:
            return None
        if tokens > limit:
            message = f"the request needs {tokens} tokens, over the limit of {limit} a minute: it can never pass"
            raise RateLimitedError(message)
        bucket = self._bucket(tenant.name, TOKENS, limit, now_s)
        wait_s = bucket.take(tokens, now_s)
        if wait_s:
            raise _limited(f"the limit of {limit} tokens a minute is reached: the request needs {tokens}", wait_s)
        return TokenReservation(bucket, tokens)

    def headers(self, tenant: Tenant, now_s: float) -> Headers:
        """Return OpenAI's `x-ratelimit-*` headers for what the tenant has left at this router."""
        found: Headers = []
        for kind, limit in ((REQUESTS, tenant.requests_per_minute), (TOKENS, tenant.tokens_per_minute)):
            if limit is None:
                continue
            bucket, word = self._bucket(tenant.name, kind, limit, now_s), kind.encode("ascii")
            left = max(0, math.floor(bucket.remaining(now_s) + 1e-9))
            found += [
                (b"x-ratelimit-limit-" + word, b"%d" % limit),
                (b"x-ratelimit-remaining-" + word, b"%d" % left),
                (b"x-ratelimit-reset-" + word, _duration(bucket.full_in_s(now_s))),
            ]
        return found

    def asked(self) -> dict[tuple[str, str], float]:
        """Return how many units were asked for so far, by tenant and kind."""
        return {key: bucket.asked for key, bucket in self._buckets.items()}

    def per_minute(self) -> dict[tuple[str, str], float]:
        """Return every limit, by tenant and kind."""
        return {key: bucket.limit for key, bucket in self._buckets.items()}

    def share(self, shares: Mapping[tuple[str, str], float], now_s: float) -> None:
        """Give no more than these shares of the limits from now on; of those that are not named, as at first."""
        self._shares = dict(shares)
        for key, bucket in self._buckets.items():
            bucket.resize(bucket.limit, self._shares.get(key, self._share), now_s)

    def follow(self, tenants: Iterable[Tenant], now_s: float) -> None:
        """Have a bucket for each limit of these tenants, and none for others."""
        kept = {}
        for tenant in tenants:
            for kind, limit in ((REQUESTS, tenant.requests_per_minute), (TOKENS, tenant.tokens_per_minute)):
                if limit is not None:
                    kept[(tenant.name, kind)] = self._bucket(tenant.name, kind, limit, now_s)
        self._buckets = kept

    def _bucket(self, name: str, kind: str, limit: int, now_s: float) -> Bucket:
        bucket = self._buckets.get((name, kind))
        if bucket is None:
            bucket = self._buckets[(name, kind)] = Bucket(limit, now_s)
            bucket.resize(limit, self._shares.get((name, kind), self._share), now_s)
        elif bucket.limit != limit:
            bucket.resize(limit, bucket.share, now_s)
        return bucket


def _limited(message: str, wait_s: float) -> RateLimitedError:
    return RateLimitedError(message, retry_after_s=max(1, math.ceil(wait_s)))


def _duration(seconds: float) -> bytes:
    """Write a time as OpenAI does: `250ms`, `7.5s`, `1m30s`."""
    thousandths = math.ceil(max(0.0, seconds) * 1000 - 1e-6)
    if thousandths < 1000:
        return b"%dms" % thousandths
    minutes, rest = divmod(thousandths, 60_000)
    text = f"{rest / 1000:g}s"
    return (f"{minutes}m{text}" if minutes else text).encode("ascii")
