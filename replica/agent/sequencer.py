"""Is this the next batch? Pure: no I/O, no clock.

An engine numbers its batches from 0 in each process and says nothing of restarts. So a number alone is not enough: the
sequencer keeps a fingerprint (a hash of the payload, which carries a time) of recent batches. A number seen before with
the same fingerprint is a duplicate; with another, it belongs to a new life of the engine. A replay is asked for from
one batch before the first missing one: when that overlap is not the batch that was seen, the engine restarted in
between.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum, auto

import xxhash

RECENT_BATCHES = 1024
_PLAUSIBLE_S = 1.5e9
"""Times before 2017 are no times of batches."""


def fingerprint(payload: bytes) -> int:
    """Return what tells a batch from another one with its number: the same in every process."""
    return xxhash.xxh64_intdigest(payload)


def made_at_s(payload: bytes) -> float | None:
    """Return the Unix time in seconds that a batch begins with, without decoding it; None where it has none."""
    if len(payload) < 10 or payload[0] & 0xF0 != 0x90 or payload[1] != 0xCB:  # an array whose first item is a double
        return None
    made_s: float = struct.unpack_from(">d", payload, 2)[0]
    return made_s if _PLAUSIBLE_S < made_s < 1e11 else None


class Verdict(Enum):
    """What a batch's number means."""

    IN_ORDER = auto()
    DUPLICATE = auto()
    GAP = auto()
    """Batches before it are missing."""
    RESTART = auto()
    """It is of a new life of the engine."""


class ReplayVerdict(Enum):
    """What the engine's answer to a replay request means."""

    WHOLE = auto()
    """It goes on where we are."""
    TRUNCATED = auto()
    """Batches between where we are and its first one are lost."""
    OTHER_LIFE = auto()
    """The engine restarted: ask again from 0."""
    IMPOSSIBLE = auto()
    """Its numbers are not consecutive."""


class Sequencer:
    """Position in one engine process's batches.

    Attributes:
        expected: Number of the next batch; None when no batch of this life has been seen.
    """

    def __init__(self) -> None:
        self.expected: int | None = None
        self._recent: dict[int, int] = {}

    def judge(self, sequence: int, fingerprint: int) -> Verdict:
        """Return what a live batch is. Changes nothing."""
        expected = self.expected or 0
        if sequence == expected:
            return Verdict.IN_ORDER
        if sequence > expected:
            return Verdict.GAP
        return Verdict.DUPLICATE if self._recent.get(sequence) == fingerprint else Verdict.RESTART

    def accept(self, sequence: int, fingerprint: int) -> None:
        """Go on behind this batch."""
        self.expected = sequence + 1
        self._recent[sequence] = fingerprint
        self._recent.pop(sequence - RECENT_BATCHES, None)

    def jump(self, sequence: int) -> None:
        """Give up what is missing: `sequence` is the next batch."""
        self._recent.clear()
        self.expected = sequence

    def restart(self) -> None:
        """Begin a new life of the engine."""
        self._recent.clear()
        self.expected = None

    @property
    def replay_from(self) -> int:
        """The number to ask a replay from: one that was seen, so that the answer shows whose life it tells."""
        return max(0, (self.expected or 0) - 1)

    def judge_replay(self, start: int, batches: Sequence[tuple[int, int]]) -> ReplayVerdict:
        """Return what a replay is.

        Args:
            start: The number that was asked for (`replay_from` at that time).
            batches: (number, fingerprint) of what came.
        """
        if not batches:
            # Nothing from a batch on that was seen: the engine that sent it is no more.
            return ReplayVerdict.OTHER_LIFE if self.expected else ReplayVerdict.WHOLE
        first = batches[0][0]
        if first < start or any(number != first + i for i, (number, _) in enumerate(batches)):
            return ReplayVerdict.IMPOSSIBLE
        if first > (self.expected or 0):
            return ReplayVerdict.TRUNCATED
        seen = self._recent.get(first)
        if first < (self.expected or 0) and seen is not None and seen != batches[0][1]:
            return ReplayVerdict.OTHER_LIFE
        return ReplayVerdict.WHOLE
