"""vLLM's event payloads, of every release.

The payload is MessagePack `[ts, [event, ...], data_parallel_rank]`; the rank may be missing. An event is

- since June 2026 a map `{"type": "BlockStored", field: value, ...}` in any order, fields at their default left out;
- before, an array `["BlockStored", value, ...]` in the order below, shorter in older releases.

    BlockStored       block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys,
                      group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window, locality, ownership, session_id
    BlockRemoved      block_hashes, medium, group_idx, locality, ownership
    AllBlocksCleared

A hash is an unsigned 64-bit integer (the last 8 bytes of the digest, big-endian), the same as a signed integer, or the
whole digest as bytes. Source: vllm/distributed/kv_events.py of 0.32.0; frames of that release are in
tests/golden/recordings.
"""

from __future__ import annotations

from typing import Any

import msgspec

from replica.agent.adapters import Batch
from router.kv.events import HASH_MASK, AllBlocksCleared, BlockRemoved, BlockStored, Event, GroupKind, Tier

STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
)
REMOVED_FIELDS = ("block_hashes", "medium", "group_idx", "locality", "ownership")

# Everything that is not here counts as GPU, None too.
_TIERS = {"CPU": Tier.CPU, "CPU_PINNED": Tier.CPU, "STORAGE": Tier.DISK, "DISK": Tier.DISK}
# "unknown" is a group of several specs; absent means a release that had full attention alone.
_FULL_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention", "unknown"})
_WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla"})
_MAX_GROUP = 1023
_MAX_BLOCK_TOKENS = 1 << 20
_MAX_WINDOW_TOKENS = 1 << 24


class OddEventError(Exception):
    """This event can't be read; its message is the reason that is counted."""


class VllmAdapter:
    """See `replica.agent.adapters.Adapter`. Engines of the same family differ in their fields alone."""

    name = "vllm"
    stored_fields: tuple[str, ...] = STORED_FIELDS
    removed_fields: tuple[str, ...] = REMOVED_FIELDS

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder().decode
        self._decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
        self._array_fields = {
            "BlockStored": self.stored_fields,
            "BlockRemoved": self.removed_fields,
            "AllBlocksCleared": (),
        }
        self._known_fields = {tag: frozenset(("type", *names)) for tag, names in self._array_fields.items()}

    def read(self, payload: bytes) -> Batch:
        """Return the payload's events in order; what can't be read is counted and left out."""
        batch = Batch()
        try:
            fields = self._decode(payload)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            fields = self._salvage(payload, batch)
        if not isinstance(fields, list) or len(fields) < 2 or not isinstance(fields[1], list):
            batch.skip("malformed_batch")
            return batch
        if isinstance(fields[0], float):
            batch.at_s = fields[0]
        if len(fields) > 2 and type(fields[2]) is int:
            batch.rank = fields[2]
        append = batch.events.append
        for raw in fields[1]:
            try:
                append(self._event(raw, batch))
            except OddEventError as odd:
                batch.skip(str(odd))
        return batch

    def _salvage(self, payload: bytes, batch: Batch) -> list[Any] | None:
        """Decode each event by itself, so that one that can't be decoded does not take its batch with it."""
        try:
            parts = self._decode_parts(payload)
            raw_events = self._decode_parts(parts[1])
        except (msgspec.MsgspecError, ValueError, TypeError, IndexError, RecursionError):
            return None
        events = []
        for raw in raw_events:
            try:
                events.append(self._decode(raw))
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                batch.skip("malformed_event")
        return [None, events]

    def _event(self, raw: object, batch: Batch) -> Event:
        if isinstance(raw, dict):
            fields = raw
            tag = raw.get("type")
            known = self._known_fields.get(tag) if isinstance(tag, str) else None
            if known is None:
                raise OddEventError("unknown_event")
            if not known.issuperset(fields):
                batch.skip("unknown_field")
        elif isinstance(raw, list) and raw:
            tag = raw[0]
            names = self._array_fields.get(tag) if isinstance(tag, str) else None
            if names is None:
                raise OddEventError("unknown_event")
            if len(raw) - 1 > len(names):
                batch.skip("unknown_field")
            fields = dict(zip(names, raw[1:], strict=False))
        else:
            raise OddEventError("malformed_event")
        if tag == "AllBlocksCleared":
            return AllBlocksCleared()
        get = fields.get
        if get("locality") == "REMOTE" or get("medium") == "EXTERNAL":
            raise OddEventError("remote_block")
        hashes = _hashes(get("block_hashes"))
        medium = get("medium")
        tier = _TIERS.get(medium.upper(), Tier.GPU) if isinstance(medium, str) else Tier.GPU
        group = get("group_idx")
        if group is None:
            group = 0
        elif type(group) is not int or not 0 <= group <= _MAX_GROUP:
            raise OddEventError("malformed_event")
        if tag == "BlockRemoved":
            return BlockRemoved(hashes, tier, group)
        parent, token_ids, block_size = get("parent_block_hash"), get("token_ids"), get("block_size")
        if token_ids is None:
            token_ids = ()
        if not isinstance(token_ids, (list, tuple)) or type(block_size) is not int:
            raise OddEventError("malformed_event")
        if not 1 <= block_size <= _MAX_BLOCK_TOKENS:
            raise OddEventError("malformed_event")
        lora_name = get("lora_name")
        return BlockStored(
            hashes=hashes,
            parent=None if parent is None else _hash(parent),
            token_ids=token_ids,
            block_size=block_size,
            tier=tier,
            group=group,
            kind=_kind(get("kv_cache_spec_kind")),
            tail_tokens=_tail_tokens(get("kv_cache_spec_kind"), get("kv_cache_spec_sliding_window")),
            # An adapter that is known by number alone still tells that the block is not the base model's.
            lora_name=lora_name if isinstance(lora_name, str) else _lora_by_number(get("lora_id")),
            extra_keys=self.extra_keys(fields, len(hashes)),
        )

    def extra_keys(self, fields: dict[Any, Any], blocks: int) -> tuple[Any, ...] | None:
        """Return the extra keys of each of an event's blocks, or None where it does not tell."""
        keys = fields.get("extra_keys")
        return tuple(keys) if isinstance(keys, list) else None


def _kind(name: object) -> GroupKind:
    if isinstance(name, str) and name not in _FULL_KINDS:
        return GroupKind.WINDOW
    return GroupKind.FULL


def _tail_tokens(kind: object, window: object) -> int:
    """Return how much of a prefix's end its next token needs: a window without that token, a Mamba state's last block.

    Chunked local attention needs as much as lies in the chunk, which depends on the place: that is not followed.
    """
    if kind == "mamba":
        return 1
    if isinstance(kind, str) and kind in _WINDOW_KINDS and type(window) is int and 0 < window <= _MAX_WINDOW_TOKENS:
        return max(1, window - 1)
    return 0


def _lora_by_number(lora_id: object) -> str | None:
    return f"#{lora_id}" if type(lora_id) is int else None


def _hashes(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise OddEventError("malformed_event")
    try:
        return tuple([value & HASH_MASK for value in values])
    except TypeError:
        return tuple([_hash(value) for value in values])


def _hash(value: object) -> int:
    if isinstance(value, int):
        return value & HASH_MASK
    if isinstance(value, bytes) and len(value) >= 8:
        return int.from_bytes(value[-8:], "big")
    raise OddEventError("malformed_hash")
