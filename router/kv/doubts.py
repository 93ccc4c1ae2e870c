"""Blocks that an engine did not find though its agent says that it holds them: a router's word to the agent, in Redis.

The bytes are MessagePack `[version, epoch, age_s, hashes]`. They are not signed: what is forged here makes routing less
warm, never wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from router.kv.wire import WireError, pack_hashes, unpack_hashes

VERSION = 1
MAX_BYTES = 16 * 1024
KEEP_S = 60
MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class Doubt:
    """What one request showed.

    Attributes:
        epoch: The unit's, when the router believed in these blocks.
        age_s: How long ago the request was placed, when this was written: what was announced since may hold them again.
        blocks: Their hashes, as the agent publishes them.
    """

    epoch: int
    age_s: float
    blocks: tuple[int, ...]


def encode(doubt: Doubt) -> bytes:
    """Return the bytes of a doubt."""
    return msgspec.msgpack.encode([VERSION, doubt.epoch, doubt.age_s, pack_hashes(doubt.blocks)])


def decode(data: bytes) -> Doubt | None:
    """Return the doubt, or None where the bytes are none of a version that can be read."""
    if len(data) > MAX_BYTES:
        return None
    try:
        fields = msgspec.msgpack.decode(data)
        version, epoch, age_s, packed = fields[:4]
        blocks = tuple(unpack_hashes(packed))
    except (msgspec.MsgspecError, WireError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if type(version) is not int or abs(version - VERSION) > 1 or type(epoch) is not int:
        return None
    if type(age_s) not in (int, float) or not math.isfinite(age_s) or age_s < 0:
        return None
    return Doubt(epoch, float(age_s), blocks)
