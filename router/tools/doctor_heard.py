"""What was heard of one rank's events. Pure: it can be judged where nothing can listen."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from router.kv.events import BlockStored


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay socket answered.

    Attributes:
        answered: Whether it answered to the end.
        batches: How many batches it gave.
        error: Why it did not answer to the end; empty when it did.
    """

    answered: bool
    batches: int = 0
    error: str = ""


@dataclass(slots=True)
class Heard:
    """What one rank's sockets gave.

    Attributes:
        address: Of the event socket.
        connected: Whether somebody is bound there.
        batches: Batches that came while we listened.
        encodings: Forms of events seen: `map`, `array`.
        hash_forms: Forms of hashes seen: `unsigned int`, `signed int`, `bytes`.
        skipped: What could not be read, by reason.
        probe_sent: Whether it was sent: not where nobody answers there.
        probe_seen: Whether the probe's root block was announced.
        probe_hash: The 64 bits that the engine announced for it.
        block_size: Tokens a block as events say.
        proof: `proven`, `refuted` or `open`.
        scheme: The proven scheme in words.
        reason: Why it is not proven.
        replay: None where the engine has no replay socket.
        error: What kept us from listening.
    """

    address: str
    connected: bool = False
    batches: int = 0
    encodings: set[str] = field(default_factory=set)
    hash_forms: set[str] = field(default_factory=set)
    skipped: dict[str, int] = field(default_factory=dict)
    probe_sent: bool = False
    probe_seen: bool = False
    probe_hash: int | None = None
    block_size: int | None = None
    proof: str = "open"
    scheme: str = ""
    reason: str | None = None
    replay: Replay | None = None
    error: str = ""


def note_probe(event: BlockStored, probe: list[int], heard: Heard) -> None:
    """Note the root block of the probe, when this is it."""
    tokens = list(event.token_ids)
    if event.parent is None and event.hashes and tokens and tokens == probe[: len(tokens)]:
        heard.probe_seen, heard.probe_hash, heard.block_size = True, event.hashes[0], event.block_size


def note_forms(payload: bytes, heard: Heard) -> None:
    """Add the forms of a payload's events and hashes to what was heard; rubbish adds nothing."""
    try:
        decoded = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    events = decoded[1] if isinstance(decoded, list) and len(decoded) > 1 else []
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict):
            heard.encodings.add("map")
            hashes = event.get("block_hashes")
        elif isinstance(event, list) and event:
            heard.encodings.add("array")
            hashes = event[1] if len(event) > 1 else None
        else:
            continue
        for value in hashes if isinstance(hashes, list) else []:
            if isinstance(value, bytes):
                heard.hash_forms.add("bytes")
            elif isinstance(value, int):
                heard.hash_forms.add("signed int" if value < 0 else "unsigned int")
