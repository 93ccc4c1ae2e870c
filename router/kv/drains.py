"""An operator's order that a replica takes no new requests, as it lies in Redis for routers and agents.

Signed as leases are: who could forge it could empty a fleet. It carries its own end, so an old one that somebody writes
again is void.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from router.kv.signing import SealError, seal, unseal
from router.kv.wire import MAX_UNIT_CHARACTERS

MAX_BYTES = 16 * 1024
MAX_DRAIN_S = 7 * 86_400.0
_CONTEXT = b"warmroute drain\0"


class DrainError(ValueError):
    """The order is not believed; `str(error)` is the reason, fit for a log line."""


class Drain(msgspec.Struct, frozen=True):
    """One order.

    Attributes:
        replica_id: Who is to take no new requests.
        until_unix_s: When it is void.
    """

    replica_id: Annotated[str, Meta(min_length=1, max_length=MAX_UNIT_CHARACTERS)]
    until_unix_s: Annotated[float, Meta(ge=0)]


def encode(drain: Drain, secret: bytes | None) -> bytes:
    """Return the order's bytes, signed where a secret is given."""
    return seal(msgspec.json.encode(drain), secret, _CONTEXT)


def decode(data: bytes, secret: bytes | None, replica_id: str, now_unix_s: float) -> Drain:
    """Return the order that was found under a replica's key.

    Raises:
        DrainError: It is not signed as it must be, of another replica, over, or longer than any may be.
    """
    if len(data) > MAX_BYTES:
        raise DrainError("the drain order is too long")
    try:
        drain = msgspec.json.decode(unseal(data, secret, _CONTEXT), type=Drain)
    except SealError as error:
        raise DrainError(f"the drain order {error}") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DrainError("the drain order is malformed") from error
    if drain.replica_id != replica_id:
        raise DrainError("the drain order is for another replica")
    # An hour of slack: clocks of machines differ.
    if not now_unix_s < drain.until_unix_s <= now_unix_s + MAX_DRAIN_S + 3600:
        raise DrainError("the drain order is over")
    return drain
