"""Which node of a Redis Cluster holds a key: the map of slots, as its nodes tell it. Pure.

A key's slot is CRC16 (XMODEM) of its hash tag, modulo 16,384 (Redis Cluster specification, "Key distribution model").
"""

from __future__ import annotations

import binascii
from typing import Any

from router.kv.redis_url import Address

SLOTS = 16_384


class SlotsError(ValueError):
    """A node's answer tells of no Cluster."""


def slot_of(key: str) -> int:
    """Return a key's slot, 0 <= slot < 16,384."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key.encode(), 0) % SLOTS


class SlotMap:
    """The primary of each slot, as far as it is known."""

    def __init__(self) -> None:
        self._of_slot: dict[int, Address] = {}

    def __bool__(self) -> bool:
        return bool(self._of_slot)

    @property
    def addresses(self) -> set[Address]:
        """All primaries."""
        return set(self._of_slot.values())

    def primary(self, slot: int) -> Address | None:
        """Return where a slot is."""
        return self._of_slot.get(slot)

    def assign(self, slot: int, address: Address) -> None:
        """A node says that a slot is somewhere else."""
        self._of_slot[slot] = address

    def learn(self, answer: Any, asked: Address) -> None:
        """Take an answer to CLUSTER SLOTS: `[first, last, [host, port, id, ...], replicas...]` each.

        Args:
            answer: As RESP gives it.
            asked: The node that answered; an entry without a host means that one's.

        Raises:
            SlotsError: It has another form. Nothing is changed then.
        """
        found: dict[int, Address] = {}
        try:
            for first, last, primary, *_ in answer:
                host = _text(primary[0])
                # "?": the node is told to announce a name, and has none.
                address = (asked[0] if host in ("", "?") else host, int(primary[1]))
                for slot in range(max(0, int(first)), min(SLOTS - 1, int(last)) + 1):
                    found[slot] = address
        except (TypeError, ValueError, IndexError) as error:
            raise SlotsError("its answer to CLUSTER SLOTS can't be read") from error
        if not found:
            raise SlotsError("no node of it has any slots yet: CLUSTER ADDSLOTS, or `redis-cli --cluster create`")
        self._of_slot = found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
