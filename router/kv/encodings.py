"""The two encodings under a block's digest: canonical CBOR (RFC 8949, 4.2.1) and Python's pickle.

Only what a block's key is made of is encoded: integers, text, bytes, null and tuples of them. Token ids are by far the
most of it, so each id is encoded once and kept.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

_KEPT_IDS = 1 << 18  # ids kept encoded; the largest vocabularies in use have about as many
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = (major << 5 for major in (0, 1, 2, 3, 4))
_NULL = b"\xf6"


def cbor_head(major: int, value: int) -> bytes:
    """Return the shortest head of an item: its major type (already shifted, 0x00 to 0xe0) and a number below 2^64.

    Raises:
        OverflowError: When the number needs more than 64 bits.
    """
    if value < 24:
        return bytes((major | value,))
    if value < 1 << 8:
        return bytes((major | 24, value))
    if value < 1 << 16:
        return bytes((major | 25,)) + value.to_bytes(2, "big")
    if value < 1 << 32:
        return bytes((major | 26,)) + value.to_bytes(4, "big")
    return bytes((major | 27,)) + value.to_bytes(8, "big")


def cbor(item: Any) -> bytes:
    """Return the canonical CBOR of an int (64 bits), str, bytes, None, or a tuple or list of these.

    Raises:
        TypeError: For any other type; a bool is not taken for a number.
        OverflowError: For a number over 64 bits.
    """
    kind = type(item)
    if kind is int:
        return cbor_head(_UNSIGNED, item) if item >= 0 else cbor_head(_NEGATIVE, -1 - item)
    if kind is str:
        # A lone surrogate can reach us in a JSON escape. The engine refuses such a request, so any bytes do.
        text: bytes = item.encode("utf-8", "surrogatepass")
        return cbor_head(_TEXT, len(text)) + text
    if kind is bytes:
        blob: bytes = item
        return cbor_head(_BYTES, len(blob)) + blob
    if item is None:
        return _NULL
    if kind is tuple or kind is list:
        return cbor_head(_ARRAY, len(item)) + b"".join(map(cbor, item))
    raise TypeError(f"a block's key has no {kind.__name__}")


class _EncodedIds(dict[int, bytes]):
    """Token id to its CBOR, filled as ids are met, bounded whatever clients send."""

    def __missing__(self, token_id: int) -> bytes:
        encoded = cbor(token_id)
        if 0 <= token_id < _KEPT_IDS:
            self[token_id] = encoded
        return encoded


encoded_id: Callable[[int], bytes] = _EncodedIds().__getitem__
"""Return the CBOR of one token id (an int below 2^64)."""


def cbor_block_prefix(parent_bytes: int, block_size: int) -> tuple[bytes, bytes]:
    """Return what stands before the parent, and between it and the ids, in `[parent, [ids...], extra keys]`.

    Args:
        parent_bytes: Length of the parent's digest (32 or 16).
        block_size: Number of ids.
    """
    return cbor_head(_ARRAY, 3) + cbor_head(_BYTES, parent_bytes), cbor_head(_ARRAY, block_size)


def pickled(item: Any) -> bytes:
    """Return the pickle (protocol 5, the highest since Python 3.8) of an item.

    Pickle writes an object that it meets again as a reference to the first one, by identity and not by equality: so
    two equal strings give other bytes when they are one object. `ExtraKeys.for_block` says which of a key's texts are
    one object. With several equal strings in the extra keys nobody outside the engine can be sure of its bytes; the
    CBOR schemes have no such trouble.
    """
    return pickle.dumps(item, protocol=5)
