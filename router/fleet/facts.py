"""What a feed tells the fleet about a replica. Plain facts, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.kv.schemes import Scheme


class Trust(StrEnum):
    """How far a unit's blocks in the index can be believed."""

    EXACT = "exact"
    """The scheme is proven: the router's hashes are the engine's."""
    MAPPED = "mapped"
    """The agent hashes the events' tokens again, by a scheme of its own."""
    APPROXIMATE = "approximate"
    """No events: the router remembers what it sent there."""
    NONE = "none"
    """The engine has no prefix cache."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name that an engine answers to.

    Attributes:
        name: What clients send.
        root: The model's path; for a LoRA adapter the adapter's path, which is part of its blocks' hashes.
        parent: The base model's name, for a LoRA adapter.
        max_model_len: Tokens of prompt and answer together.
    """

    name: str
    root: str
    parent: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """One data-parallel rank of a replica: what the index is kept by.

    Attributes:
        scheme: How its engine names blocks; None while unknown.
        num_blocks: Blocks its GPU cache has; None while unknown.
        reason: Why trust is not exact, in words for operators.
        strides: By cache group how many of the scheme's blocks make one of the group's, where that is more than one.
        tails: Cache groups that keep ends of prefixes alone: the group, how many of the scheme's blocks make one of
            its, and how many of its blocks before a prefix's end it must hold.
        whole: Whether its agent announced all that its cache holds: it may have come when there was something already.
    """

    unit_id: str
    rank: int
    scheme: Scheme | None
    trust: Trust
    num_blocks: int | None = None
    reason: str | None = None
    whole: bool = True
    strides: tuple[tuple[int, int], ...] = ()
    tails: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """One engine process.

    Attributes:
        url: `http://HOST:PORT`, normalised.
        source: Which feed says so: `redis`, `static`, `kubernetes` or `dns`; all but the first know no agent.
        draining: It finishes what it has and takes nothing new.
    """

    replica_id: str
    url: str
    source: str
    models: tuple[ServedModel, ...]
    units: tuple[UnitFacts, ...]
    draining: bool = False
    engine: str = ""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's own figures.

    Attributes:
        running, waiting: Requests.
        kv_usage: Share of the KV cache in use, 0 to 1.
        at_s: When, in clock seconds.
        query_tokens, hit_tokens: Its counters of prompt tokens looked up in the prefix cache, and found; None where it
            does not tell.
    """

    running: int
    waiting: int
    kv_usage: float
    at_s: float
    query_tokens: int | None = None
    hit_tokens: int | None = None
