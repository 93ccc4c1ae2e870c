"""What agents and routers say to each other through Redis, as bytes.

A message is one MessagePack array `[version, kind, ...fields]`; hashes travel as packed big-endian 64-bit words, 8
bytes a block. Token ids and text never enter Redis.

The version rule: a reader takes messages of its own version and of one version up or down. So a new version may add
kinds (skipped by older readers) and fields at the end of an array (ignored by them), and nothing else. What each
version wrote is recorded in tests/golden/wire.

    kind   fields
    1      unit, epoch, sequence, [[op, tier, group, kind, hashes], ...], behind ms       BlocksBatch
    2      unit, epoch, sequence, running, waiting, kv_usage, behind ms, query tokens, hit tokens   Heartbeat
    3      unit, epoch, state                                                     StateChange
    16     unit, epoch, sequence, stream id, index, chunks, [[tier, group, kind, hashes], ...]   a chunk of a Snapshot

Version 2 added `behind ms` to both; where it is missing it is 0. It added the tokens, which are unknown without.
"""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

WIRE_VERSION = 2
MAX_CHUNK_BYTES = 128 * 1024
MAX_UNIT_CHARACTERS = 256
MAX_BEHIND_S = 3600.0
_MAX_COUNTER = (1 << 63) - 1
_MAX_STREAM_NUMBER = (1 << 64) - 1
_MAX_LAYER_NUMBER = 65_535
_BATCH, _HEARTBEAT, _STATE, _SNAPSHOT = 1, 2, 3, 16
_OPS: tuple[Literal["stored", "removed", "cleared"], ...] = ("stored", "removed", "cleared")
_STATES = ("ready", "draining", "gone")
_STREAM_ID = re.compile(r"\d{1,20}-\d{1,20}\Z", re.ASCII)

Layer = tuple[int, int, int, Sequence[int]]
"""(tier, group, kind, hashes): the live blocks of one tier and cache group."""


class WireError(ValueError):
    """The bytes are no message of a version that can be read."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a batch; order within the batch matters.

    Attributes:
        op: `stored` (0 to 1 copies), `removed` (1 to 0) or `cleared` (everything; hashes are empty).
        tier: A `router.kv.events.Tier`.
        group: Cache group, from 0.
        kind: A `router.kv.events.GroupKind`; meaningful for `stored`.
        hashes: Unsigned 64-bit block hashes.
    """

    op: Literal["stored", "removed", "cleared"]
    tier: int = 0
    group: int = 0
    kind: int = 0
    hashes: Sequence[int] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Change):
            return NotImplemented
        head = (self.op, self.tier, self.group, self.kind) == (other.op, other.tier, other.group, other.kind)
        return head and list(self.hashes) == list(other.hashes)

    __hash__ = None  # type: ignore[assignment]  # hashes may be a mutable sequence


@dataclass(frozen=True, slots=True)
class BlocksBatch:
    """Changes of one unit's cache; batches of one epoch are numbered from 1 without holes.

    Attributes:
        behind_s: Age of the engine's newest event in it when it was written: what the engine announced earlier was
            written before. 0 to `MAX_BEHIND_S`, in whole milliseconds.
    """

    unit: str
    epoch: int
    sequence: int
    changes: tuple[Change, ...]
    behind_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The unit is alive; `sequence` is its last batch's, so a lost tail shows. None is unknown, never idle.

    Attributes:
        running: Requests in the engine's batch.
        waiting: Requests in its queue.
        kv_usage: Share of KV blocks in use, 0 to 1.
        behind_s: What the agent read of its engine longer ago than this was written before. 0 to `MAX_BEHIND_S`.
        query_tokens, hit_tokens: The engine's counters of prompt tokens looked up in its prefix cache, and found.
    """

    unit: str
    epoch: int
    sequence: int
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    behind_s: float = 0.0
    query_tokens: int | None = None
    hit_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StateChange:
    """The unit is taking requests, finishing those it has, or gone."""

    unit: str
    epoch: int
    state: Literal["ready", "draining", "gone"]


Message = BlocksBatch | Heartbeat | StateChange


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    match message:
        case BlocksBatch():
            changes = [[_OPS.index(c.op), c.tier, c.group, c.kind, pack_hashes(c.hashes)] for c in message.changes]
            fields = [WIRE_VERSION, _BATCH, message.unit, message.epoch, message.sequence, changes]
            fields.append(_behind_ms(message.behind_s))
        case Heartbeat():
            fields = [WIRE_VERSION, _HEARTBEAT, message.unit, message.epoch, message.sequence]
            fields += [message.running, message.waiting, message.kv_usage, _behind_ms(message.behind_s)]
            fields += [message.query_tokens, message.hit_tokens]
        case StateChange():
            fields = [WIRE_VERSION, _STATE, message.unit, message.epoch, message.state]
    return msgspec.msgpack.encode(fields)


def decode(data: bytes) -> Message | None:
    """Return the message, or None for a kind that this version does not know.

    Raises:
        WireError: The bytes are rubbish, or from a version more than one apart.
    """
    kind, fields = _open(data)
    if kind == _BATCH:
        unit, epoch, sequence, changes = _take(fields, 4)
        if not isinstance(changes, list):
            raise WireError("changes are no list")
        head = (_unit(unit), _counter(epoch), _counter(sequence))
        return BlocksBatch(*head, tuple(map(_change, changes)), _behind_s(fields, 4))
    if kind == _HEARTBEAT:
        unit, epoch, sequence, running, waiting, usage = _take(fields, 6)
        head = (_unit(unit), _counter(epoch), _counter(sequence))
        load = (_optional_counter(running), _optional_counter(waiting), _share(usage))
        return Heartbeat(*head, *load, _behind_s(fields, 6), *map(_optional_counter, fields[7:9]))
    if kind == _STATE:
        unit, epoch, state = _take(fields, 3)
        if state not in _STATES:
            raise WireError("state is not known")
        return StateChange(_unit(unit), _counter(epoch), cast("Literal['ready', 'draining', 'gone']", state))
    return None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All live blocks of a unit after batch `sequence` of `epoch`.

    Attributes:
        stream_id: Position in the lane's stream at or before batch `sequence + 1`: read on from there, exclusively,
            and skip batches up to `sequence`.
        layers: (tier, group, kind, hashes) each; a tier and group appear once.
    """

    unit: str
    epoch: int
    sequence: int
    stream_id: str
    layers: Sequence[Layer]

    def encode_chunks(self, max_bytes: int = MAX_CHUNK_BYTES) -> list[bytes]:
        """Return the snapshot in chunks of at most `max_bytes` each (at least 1 KiB), so no write blocks Redis."""
        # Heads are short: the unit's name at 4 bytes a character, the numbers, and 32 bytes for each layer's frame.
        room = max(max_bytes, 1024) - 4 * len(self.unit) - 128
        room = max(room, 256)
        parts: list[list[list[Any]]] = [[]]
        left = room
        for tier, group, kind, hashes in self.layers:
            packed = pack_hashes(hashes)
            start = 0
            while start < len(packed):
                if left < 48:
                    parts.append([])
                    left = room
                size = min((left - 32) // 8 * 8, len(packed) - start)
                parts[-1].append([tier, group, kind, packed[start : start + size]])
                start += size
                left -= size + 32
        head = [WIRE_VERSION, _SNAPSHOT, self.unit, self.epoch, self.sequence, self.stream_id]
        return [msgspec.msgpack.encode([*head, index, len(parts), part]) for index, part in enumerate(parts)]


def decode_chunks(chunks: Iterable[bytes]) -> Snapshot:
    """Return the snapshot of which these are all chunks, in any order.

    Raises:
        WireError: A chunk is rubbish, missing, doubled, or of another snapshot.
    """
    heads: set[tuple[str, int, int, str, int]] = set()
    parts: dict[int, list[Any]] = {}
    for chunk in chunks:
        kind, fields = _open(chunk)
        if kind != _SNAPSHOT:
            raise WireError("not a chunk of a snapshot")
        unit, epoch, sequence, stream_id, index, count, layers = _take(fields, 7)
        if not isinstance(layers, list):
            raise WireError("a snapshot's chunk is malformed")
        heads.add((_unit(unit), _counter(epoch), _counter(sequence), _stream_id(stream_id), _counter(count)))
        if _counter(index) in parts:
            raise WireError("a chunk is doubled")
        parts[index] = layers
    if len(heads) != 1:
        raise WireError("no chunks" if not heads else "chunks of different snapshots")
    unit, epoch, sequence, stream_id, count = heads.pop()
    if len(parts) != count or max(parts) != count - 1:
        raise WireError(f"{len(parts)} of {count} chunks")
    merged: dict[tuple[int, int, int], array[int]] = {}
    for index in sorted(parts):
        for item in parts[index]:
            if not isinstance(item, list) or len(item) < 4:
                raise WireError("a layer is malformed")
            layer = (_layer_number(item[0]), _layer_number(item[1]), _layer_number(item[2]))
            hashes = unpack_hashes(item[3])
            if layer in merged:
                merged[layer].extend(hashes)
            else:
                merged[layer] = hashes
    return Snapshot(unit, epoch, sequence, stream_id, [(*layer, hashes) for layer, hashes in merged.items()])


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """Return unsigned 64-bit hashes as big-endian words.

    Raises:
        OverflowError: A hash is not in 0 <= hash < 2**64.
    """
    words = array("Q", hashes)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def unpack_hashes(data: object) -> array[int]:
    """Return the hashes of `pack_hashes`.

    Raises:
        WireError: Not bytes, or not a whole number of words.
    """
    if not isinstance(data, bytes) or len(data) % 8:
        raise WireError("hashes are no packed 64-bit words")
    words = array("Q", data)
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _open(data: bytes) -> tuple[int, list[Any]]:
    try:
        fields = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise WireError("not MessagePack") from error
    if not isinstance(fields, list) or len(fields) < 2:
        raise WireError("not an array of version, kind and fields")
    version, kind = fields[0], fields[1]
    if type(version) is not int or type(kind) is not int:
        raise WireError("version and kind are no integers")
    if abs(version - WIRE_VERSION) > 1:
        raise WireError(f"wire version {version} can't be read by version {WIRE_VERSION}")
    return kind, fields[2:]


def _take(fields: list[Any], count: int) -> list[Any]:
    if len(fields) < count:
        raise WireError("fields are missing")
    return fields[:count]


def _change(item: object) -> Change:
    if not isinstance(item, list) or len(item) < 5:
        raise WireError("a change is malformed")
    op, tier, group, kind, hashes = item[:5]
    if type(op) is not int or not 0 <= op < len(_OPS):
        raise WireError("a change's operation is not known")
    numbers = (_layer_number(tier), _layer_number(group), _layer_number(kind))
    return Change(_OPS[op], *numbers, unpack_hashes(hashes))


def _unit(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_UNIT_CHARACTERS:
        raise WireError("a unit's name is malformed")
    return value


def _stream_id(value: object) -> str:
    # One that Redis does not take would make every reading of the lane fail.
    if not isinstance(value, str) or not _STREAM_ID.match(value):
        raise WireError("a stream id is malformed")
    if any(int(number) > _MAX_STREAM_NUMBER for number in value.split("-")):
        raise WireError("a stream id is not in its range")
    return value


def _counter(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNTER:
        raise WireError("a number is not in its range")
    return value


def _behind_ms(behind_s: float) -> int:
    return int(min(max(behind_s, 0.0), MAX_BEHIND_S) * 1000)


def _behind_s(fields: list[Any], place: int) -> float:
    return min(_counter(fields[place]) / 1000, MAX_BEHIND_S) if len(fields) > place else 0.0


def _optional_counter(value: object) -> int | None:
    return None if value is None else _counter(value)


def _share(value: object) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(cast("float", value)):
        raise WireError("a share is no number")
    return float(cast("float", value))


def _layer_number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_LAYER_NUMBER:
        raise WireError("a tier, group or kind is not in its range")
    return value
