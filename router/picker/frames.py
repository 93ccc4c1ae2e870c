"""HTTP/2's frames (RFC 9113), as much as a gRPC server needs of them. No I/O."""

from __future__ import annotations

from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
MAX_FRAME_BYTES = 16_384
"""What either side takes until it says more; the most that is taken here."""
FIRST_WINDOW_BYTES = 65_535
"""How much may be under way before anything is said of windows."""
MAX_WINDOW_BYTES = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """What a side tells of itself."""

    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class BrokenError(Exception):
    """The peer does not keep to HTTP/2: the connection is of no use any more."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"), payload)


def settings(values: dict[Setting, int]) -> bytes:
    """Encode what a side tells of itself."""
    told = [setting.to_bytes(2, "big") + value.to_bytes(4, "big") for setting, value in values.items()]
    return frame(SETTINGS, 0, 0, b"".join(told))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return what the peer tells of itself.

    Raises:
        BrokenError: It is cut short.
    """
    if len(payload) % 6:
        raise BrokenError(Code.FRAME_SIZE_ERROR, "SETTINGS are cut short")
    steps = range(0, len(payload), 6)
    return [
        (int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")) for at in steps
    ]


def window_update(stream: int, more_bytes: int) -> bytes:
    """Let the peer send so much more."""
    return frame(WINDOW_UPDATE, 0, stream, more_bytes.to_bytes(4, "big"))


def reset(stream: int, code: Code) -> bytes:
    """End a stream."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: Code, why: str = "") -> bytes:
    """Take no streams after this one."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + why.encode())


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a header for the peer without its table: neither side has to remember anything. Up to 126 bytes each."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


def without_padding(flags: int, payload: bytes) -> bytes:
    """Return what a padded frame carries.

    Raises:
        BrokenError: There is more padding than frame.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BrokenError(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
