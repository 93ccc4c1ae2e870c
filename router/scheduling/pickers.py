"""Pickers: each takes the scored candidates and names one, with the reason in a word.

A new picker is a class here and a line in `policies.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from router.scheduling.candidate import Candidate
from router.scheduling.ring import OwnerRing

BOUNDED_LOAD = 1.25
"""A consistent-hash owner takes at most this many times the mean load (Mirrokni and others, 2018)."""


@dataclass(slots=True, eq=False)
class Choice:
    """What pickers may look at besides the candidates.

    Attributes:
        owner_key: Hash that names the prompt's first blocks; None where the prompt was not understood.
        ring: All units that serve the model, whether they may be chosen now or not.
        tie_tokens: Costs this near to the lowest are equal.
        rng: The only source of chance.
    """

    owner_key: int | None
    ring: OwnerRing
    tie_tokens: float
    rng: Random


class Picker(Protocol):
    """Names one of at least one candidates."""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """Return the winner and the reason: `only`, `cost`, `owner`, `least-loaded`, `random`, `turn`, `prefix`."""
        ...

    def took(self, winner: Candidate) -> None:
        """The choice was carried out (not only asked for)."""
        ...


class Stateless:
    """A picker that remembers nothing."""

    def took(self, winner: Candidate) -> None:
        """See `Picker`."""


def _by_load(item: Candidate) -> tuple[float, int]:
    return (item.backlog_tokens, item.running)


def _least_loaded(scored: Sequence[Candidate], rng: Random) -> tuple[Candidate, str]:
    least = min(map(_by_load, scored))
    lightest = [item for item in scored if _by_load(item) == least]
    if len(lightest) == 1:
        return lightest[0], "least-loaded"
    return rng.choice(lightest), "random"


class LowestCost(Stateless):
    """The lowest cost; among ties the longest match, then the prompt's owner, else the least loaded, else any."""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """See `Picker`."""
        most = min([item.cost for item in scored]) + choice.tie_tokens
        tied = [item for item in scored if item.cost <= most]
        if len(tied) == 1:
            return tied[0], "cost"
        longest = max([item.expected_tokens for item in tied])
        tied = [item for item in tied if item.expected_tokens == longest]
        if len(tied) == 1:
            return tied[0], "prefix"
        if choice.owner_key is not None:
            owner = choice.ring.owner(choice.owner_key)
            for item in tied:
                if item.unit_id == owner:
                    return item, "owner"
        return _least_loaded(tied, choice.rng)


class LongestPrefix(Stateless):
    """The longest match; among equals the least loaded."""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """See `Picker`."""
        longest = max([item.matched_tokens for item in scored])
        holders = [item for item in scored if item.matched_tokens == longest]
        if len(holders) == 1:
            return holders[0], "prefix"
        return _least_loaded(holders, choice.rng)


class LeastLoaded(Stateless):
    """The fewest tokens to wait for, whatever is cached."""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """See `Picker`."""
        return _least_loaded(scored, choice.rng)


class ConsistentHash(Stateless):
    """The owner of the prompt's first blocks; past its share of the load, the next on the ring."""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """See `Picker`."""
        if choice.owner_key is None:
            return _least_loaded(scored, choice.rng)
        by_unit = {item.unit_id: item for item in scored}
        total = sum(item.running for item in scored) + 1
        most = math.ceil(BOUNDED_LOAD * total / len(scored))
        for unit_id in choice.ring.preference(choice.owner_key):
            item = by_unit.get(unit_id)
            if item is not None and item.running < most:
                return item, "owner"
        return _least_loaded(scored, choice.rng)


class PowerOfTwo(Stateless):
    """The lighter of two taken at random."""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """See `Picker`."""
        pair = choice.rng.sample(scored, 2) if len(scored) > 1 else scored
        return _least_loaded(pair, choice.rng)


class RoundRobin:
    """Each in turn, by name."""

    def __init__(self) -> None:
        self._last = ""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """See `Picker`. The turn goes by name, so that candidates may come and go."""
        later = [item for item in scored if item.unit_id > self._last]
        return min(later or scored, key=lambda one: one.unit_id), "turn"

    def took(self, winner: Candidate) -> None:
        """See `Picker`."""
        self._last = winner.unit_id


class AnyOne(Stateless):
    """Any, with equal chance."""

    def pick(self, scored: Sequence[Candidate], choice: Choice) -> tuple[Candidate, str]:
        """See `Picker`."""
        return choice.rng.choice(scored), "random"
