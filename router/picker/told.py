"""What a gateway tells in one message of ext_proc: Envoy's ProcessingRequest, as far as it matters here. No I/O.

The numbers are those of envoy/service/ext_proc/v3/external_processor.proto and what it imports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from router.picker import protobuf

SUBSET_NAMESPACE = b"envoy.lb.subset_hint"
SUBSET_KEY = b"x-gateway-destination-endpoint-subset"

Headers = list[tuple[bytes, bytes]]


class Part(IntEnum):
    """Which part of request or answer a message brings, by the field's number."""

    NOTHING = 0
    REQUEST_HEADERS = 2
    RESPONSE_HEADERS = 3
    REQUEST_BODY = 4
    RESPONSE_BODY = 5
    REQUEST_TRAILERS = 6
    RESPONSE_TRAILERS = 7


class BodyMode(IntEnum):
    """`BodySendMode`: how the gateway sends bodies."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


@dataclass(slots=True)
class Told:
    """One message.

    Attributes:
        headers: Of a head; lower-case names and values in order.
        body: Of a part of a body.
        ends: No body follows, or no more of it.
        modes: How bodies of request and answer are sent; only the first message of a request says so.
        subset: ADDRESS:PORT of the endpoints that the gateway allows; None: any.
    """

    part: Part
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    ends: bool = False
    modes: tuple[int, int] | None = None
    subset: frozenset[str] | None = None

    def first(self, name: bytes) -> bytes | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)


_PARTS = {int(part): part for part in Part if part}


def read(data: bytes) -> Told:
    """Read a message.

    Raises:
        MalformedError: It is none of Protocol Buffers'.
    """
    told = Told(Part.NOTHING)
    for number, value in protobuf.read(data):
        if not isinstance(value, bytes):
            continue
        part = _PARTS.get(number)
        if part is not None:
            told.part = part
            if part <= Part.RESPONSE_HEADERS:
                inner = protobuf.read(value)
                told.headers, told.ends = _headers(protobuf.message_in(inner, 1)), protobuf.number_in(inner, 3) != 0
            elif part <= Part.RESPONSE_BODY:
                inner = protobuf.read(value)
                told.body, told.ends = protobuf.message_in(inner, 1) or b"", protobuf.number_in(inner, 2) != 0
        elif number == 8:
            told.subset = _subset(value)
        elif number == 11:
            modes = protobuf.read(value)
            told.modes = protobuf.number_in(modes, 1), protobuf.number_in(modes, 2)
    return told


def _headers(data: bytes | None) -> Headers:
    found = []
    for _, header in protobuf.read(data or b""):
        name = value = b""
        if isinstance(header, bytes):
            for number, item in protobuf.read(header):
                if isinstance(item, bytes):
                    if number == 1:
                        name = item
                    elif number in (2, 3) and item:  # as text, or raw
                        value = item
            found.append((name.lower(), value))
    return found


def _subset(metadata: bytes) -> frozenset[str] | None:
    """Return what a hint allows, as a list or as text; a hint that is there and names none allows none."""
    hint = _entry(protobuf.read(metadata), SUBSET_NAMESPACE)
    listed = None if hint is None else _entry(protobuf.read(hint), SUBSET_KEY)
    if listed is None:
        return None
    value = protobuf.read(listed)
    text = protobuf.message_in(value, 3)
    if text is not None:
        names = text.split(b",")
    else:
        items = protobuf.read(protobuf.message_in(value, 6) or b"")
        names = [protobuf.message_in(protobuf.read(item), 3) or b"" for _, item in items if isinstance(item, bytes)]
    return frozenset(name.strip().decode("utf-8", "replace") for name in names if name.strip())


def _entry(fields: list[protobuf.Field], key: bytes) -> bytes | None:
    """Return what a map (field 1) holds under a key; None: nothing."""
    for number, entry in fields:
        if number == 1 and isinstance(entry, bytes):
            pair = protobuf.read(entry)
            if protobuf.message_in(pair, 1) == key:
                return protobuf.message_in(pair, 2) or b""
    return None
