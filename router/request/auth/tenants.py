"""Tenants as one value: made of the configuration, and replaced as a whole when that is read anew."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from router.config import RouterConfig
from router.errors import PriorityRefusedError
from router.request.auth.keys import KeyTable, given_key


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who a request is from.

    Attributes:
        name: As in the configuration; stands in metrics, decisions and logs.
        salt_secret: Key of its cache salts; None: it is not isolated.
        combines_salts: A `cache_salt` of its clients' becomes part of its own; False: it is refused.
        tells_cached: Its answers tell what is cached for it.
        requests_per_minute: None: no limit.
        tokens_per_minute: Prompt and answer tokens together; None: no limit.
        weight: Its share of the queue.
        priority: Of requests that name none; lower goes first.
        priority_min: The lowest that a request may name; None: any.
        priority_max: The highest.
    """

    name: str
    salt_secret: bytes | None = field(default=None, repr=False)
    combines_salts: bool = True
    tells_cached: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    weight: float = 1.0
    priority: int = 0
    priority_min: int | None = None
    priority_max: int | None = None

    @property
    def isolated(self) -> bool:
        """Whether its requests need a cache salt."""
        return self.salt_secret is not None

    def salt(self, client_salt: str | None = None) -> str:
        """Return its cache salt: HMAC-SHA256(secret, name), as 43 characters of URL-safe base64.

        Engines take up to 128 characters, and none of `@`, `/`, `\\` and NUL.

        Args:
            client_salt: The client's own. It follows the name after a NUL, which no name holds.
        """
        message = self.name if client_salt is None else f"{self.name}\0{client_salt}"
        encoded = message.encode("utf-8", "surrogatepass")
        digest = hmac.digest(self.salt_secret or b"", encoded, hashlib.sha256)
        return urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")

    def priority_of(self, asked: int | None) -> int:
        """Return the priority of a request, given the one that it names.

        Raises:
            PriorityRefusedError: It may not ask for that. It is not bent: the engine reads the same body.
        """
        if asked is None:
            return self.priority
        low, high = self.priority_min, self.priority_max
        if (low is not None and asked < low) or (high is not None and asked > high):
            wanted = f"{'any' if low is None else low} to {'any' if high is None else high}"
            raise PriorityRefusedError(f"`priority` must be in {wanted} for this API key", param="priority")
        return asked


class Tenants:
    """All tenants of a router. Holds no state: limits and queues are kept by name, and outlive it."""

    def __init__(self, tenants: Iterable[tuple[Tenant, Iterable[str]]], blinding: bytes) -> None:
        """Make the value.

        Args:
            tenants: Each with the SHA-256 of its keys, as hex.
            blinding: See `KeyTable`.
        """
        self._tenants: dict[str, Tenant] = {}
        owners: dict[str, Tenant] = {}
        for tenant, keys in tenants:
            self._tenants[tenant.name] = tenant
            owners.update((key, tenant) for key in keys)
        self._table = KeyTable(owners, blinding)

    @classmethod
    def of(cls, config: RouterConfig, blinding: bytes) -> Tenants | None:
        """Return what a checked configuration says; None: it sets no tenants, and anyone may send."""
        if config.tenants is None:
            return None
        secret = None if config.isolation.secret is None else config.isolation.secret.encode()
        combines = config.isolation.client_salt == "combine"
        return cls(
            (
                (
                    Tenant(
                        name=item.name,
                        salt_secret=secret if item.isolated else None,
                        combines_salts=combines,
                        tells_cached=item.tells_cached and item.isolated,
                        requests_per_minute=item.requests_per_minute,
                        tokens_per_minute=item.tokens_per_minute,
                        weight=item.weight,
                        priority=item.priority,
                        # Or a client could put itself before everyone.
                        priority_min=item.priority if item.priority_min is None else item.priority_min,
                        priority_max=item.priority_max,
                    ),
                    item.keys,
                )
                for item in config.tenants
            ),
            blinding,
        )

    def __len__(self) -> int:
        return len(self._tenants)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tenants

    def of_request(self, headers: Iterable[tuple[bytes, bytes]]) -> Tenant:
        """Return whose key a request's head gives.

        Raises:
            InvalidApiKeyError: It gives none, several, or one that is not known.
        """
        return self._table.owner(given_key(headers))
