"""What the block pool did, as facts, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass

BlockKey = bytes
"""Identity of a full block's content and everything before it: the whole digest."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Consecutive full blocks of one request became findable.

    Attributes:
        keys: One a block, shallow first.
        parent: Key of the block before the first; None where the first is the start of a prompt.
        token_ids: All tokens of these blocks.
        block_size: Tokens a block.
        lora_name: Adapter of the request.
        lora_id: Number of that adapter in the engine, from 1.
        extra_keys: One a block, untagged, as engines publish them: adapter name, salt; None where there is none.
    """

    keys: list[BlockKey]
    parent: BlockKey | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None
    lora_id: int | None
    extra_keys: list[tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of a block was overwritten to make room."""

    key: BlockKey


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """The whole cache was reset."""


CacheEvent = BlocksStored | BlockRemoved | CacheCleared
