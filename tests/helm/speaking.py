"""Runs a command of Warmroute's that speaks another version of the wire: `python speaking.py 1 agent --redis ...`.

It writes what that version wrote, field for field (test_helm_rolling.py holds it against the bytes that were recorded
when it was current), and takes what that version took: its own messages and those of one version up or down.
"""

from __future__ import annotations

import sys

import msgspec

from router.kv import wire

FIELDS_OF_VERSION_1 = {1: 6, 2: 8}
"""How many fields a batch and a heartbeat had, with version and kind; the others have what they had."""

_encode_now = wire.encode


def speak(version: int) -> None:
    """Have this process speak version 1; to be called before anything else of the project is imported."""
    assert version == 1
    wire.WIRE_VERSION = version
    wire.encode = encode_as_version_1


def encode_as_version_1(message: wire.Message) -> bytes:
    """Return the bytes that version 1 made of a message."""
    _, kind, *fields = msgspec.msgpack.decode(_encode_now(message))
    return msgspec.msgpack.encode([1, kind, *fields][: FIELDS_OF_VERSION_1.get(kind)])


if __name__ == "__main__":
    speak(int(sys.argv[1]))
    from router.cli import main

    sys.exit(main(sys.argv[2:]))
