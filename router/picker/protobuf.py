"""Protocol Buffers' encoding, as much as ext_proc and gRPC's health checks need. No I/O, no schema.

The messages are small, few of their fields matter, and most of what goes back never changes: the classes that are
generated for them cost more than all the rest of a request, and their packages bring other versions of what other
extras install. Tests hold this against Google's own classes.
"""

from __future__ import annotations

Field = tuple[int, "int | bytes"]


class MalformedError(ValueError):
    """It is no message of Protocol Buffers."""


def read(data: bytes) -> list[Field]:
    """Return a message's fields in order, by number: numbers for varints and fixed ones, bytes for all else.

    Raises:
        MalformedError: See there.
    """
    found: list[Field] = []
    at, size = 0, len(data)
    while at < size:
        key = data[at]
        at += 1
        if key > 127:
            key, at = _varint(data, at - 1)
        kind = key & 7
        if kind == 2:
            if at < size and data[at] < 128:
                length = data[at]
                at += 1
            else:
                length, at = _varint(data, at)
            end = at + length
            found.append((key >> 3, data[at:end]))
        elif kind == 0:
            value, end = _varint(data, at)
            found.append((key >> 3, value))
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
            found.append((key >> 3, int.from_bytes(data[at:end], "little")))
        else:
            raise MalformedError(f"there is no wire type {kind} here")
        if end > size or key < 8:
            raise MalformedError("it is cut short, or has a field 0")
        at = end
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise MalformedError("a number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7


def message_in(fields: list[Field], number: int) -> bytes | None:
    """Return the last field of this number that holds bytes; None: there is none."""
    found = None
    for key, value in fields:
        if key == number and isinstance(value, bytes):
            found = value
    return found


def number_in(fields: list[Field], number: int) -> int:
    """Return the last field of this number that holds a number; 0: there is none."""
    found = 0
    for key, value in fields:
        if key == number and isinstance(value, int):
            found = value
    return found


def varint(value: int) -> bytes:
    """Encode a number from 0 on."""
    if value < 128:
        return bytes((value,))
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def field(number: int, payload: bytes) -> bytes:
    """Encode a field that holds a message, text or bytes; `number` up to 15."""
    size = len(payload)
    if size < 128:
        return bytes((number << 3 | 2, size)) + payload
    return bytes((number << 3 | 2,)) + varint(size) + payload


def number_field(number: int, value: int) -> bytes:
    """Encode a field that holds a number, a choice or a flag; `number` up to 15."""
    return bytes((number << 3,)) + varint(value)
