"""What happened in a replica's cache, in words that belong to no engine.

An engine adapter (replica/agent/adapters) turns an engine's own frames into these. Hashes are the identity of a block:
the last 8 bytes of the engine's digest as an unsigned integer, 0 <= hash < 2**64. They are msgspec structs, since an
agent makes tens of thousands of them a second and a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec

HASH_MASK = (1 << 64) - 1


class Tier(IntEnum):
    """Where a block lies. A medium that is not known counts as GPU."""

    GPU = 0
    CPU = 1
    DISK = 2


class GroupKind(IntEnum):
    """How far the blocks of a cache group reach."""

    FULL = 0
    """Full attention: a leading run of blocks is a prefix match."""
    WINDOW = 1
    """Sliding windows, Mamba states and other partial groups: of a prefix they keep its end alone."""


class BlockStored(msgspec.Struct, frozen=True, gc=False):
    """Blocks are in the cache now, or were reported again.

    Attributes:
        hashes: Block hashes, first block first. May be empty, or fewer than `token_ids` has blocks (sparse stores):
            then no hash may be tied to a slice of the tokens.
        parent: Hash of the block before the first; None for the root of a chain.
        token_ids: Tokens of the stored blocks; may be empty where an engine leaves them out.
        block_size: Tokens per block.
        tier: Where the blocks lie.
        group: Number of the cache group, from 0.
        kind: How the group matches.
        tail_tokens: Of a group that keeps ends alone, how many tokens before a prefix's end it must hold for the prefix
            to be of use; 0 where that is not known.
        lora_name: Served name of the adapter, or None.
        extra_keys: One entry per block as the engine publishes them (untagged, without an adapter's path), or None.
    """

    hashes: tuple[int, ...]
    parent: int | None
    token_ids: Sequence[int]
    block_size: int
    tier: Tier = Tier.GPU
    group: int = 0
    kind: GroupKind = GroupKind.FULL
    tail_tokens: int = 0
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = None


class BlockRemoved(msgspec.Struct, frozen=True, gc=False):
    """One copy of each of these blocks left the tier and group."""

    hashes: tuple[int, ...]
    tier: Tier = Tier.GPU
    group: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False):
    """The unit's whole cache is empty, in every tier and group."""


Event = BlockStored | BlockRemoved | AllBlocksCleared
