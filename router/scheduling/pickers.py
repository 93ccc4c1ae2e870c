"""Pickers: each takes the scored candidates and names one, with the reason in a word.

A new picker is a class here and a line in `policies.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from router.scheduling.candidates import Candidates
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

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """Return the winner's place and the reason: `only`, `cost`, `owner`, `least-loaded`, `random`, `turn`,
        `prefix`."""
        ...

    def took(self, unit_id: str) -> None:
        """The choice was carried out (not only asked for)."""
        ...


class Stateless:
    """A picker that remembers nothing."""

    def took(self, unit_id: str) -> None:
        """See `Picker`."""


def _least_loaded(scored: Candidates, places: Sequence[int], rng: Random) -> tuple[int, str]:
    loads = [(scored.backlog_tokens[place], scored.running[place]) for place in places]
    least = min(loads)
    lightest = [place for place, load in zip(places, loads, strict=True) if load == least]
    if len(lightest) == 1:
        return lightest[0], "least-loaded"
    return rng.choice(lightest), "random"


class LowestCost(Stateless):
    """The lowest cost; among ties the longest match, then the prompt's owner, else the least loaded, else any."""

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """See `Picker`."""
        costs = scored.costs
        most = min(costs) + choice.tie_tokens
        tied = [place for place, cost in enumerate(costs) if cost <= most]
        if len(tied) == 1:
            return tied[0], "cost"
        expected = scored.expected_tokens
        longest = max([expected[place] for place in tied])
        tied = [place for place in tied if expected[place] == longest]
        if len(tied) == 1:
            return tied[0], "prefix"
        if choice.owner_key is not None:
            owner = choice.ring.owner(choice.owner_key)
            for place in tied:
                if scored.unit_ids[place] == owner:
                    return place, "owner"
        return _least_loaded(scored, tied, choice.rng)


class LongestPrefix(Stateless):
    """The longest match; among equals the least loaded."""

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """See `Picker`."""
        longest = max(scored.matched_tokens)
        holders = [place for place, tokens in enumerate(scored.matched_tokens) if tokens == longest]
        if len(holders) == 1:
            return holders[0], "prefix"
        return _least_loaded(scored, holders, choice.rng)


class LeastLoaded(Stateless):
    """The fewest tokens to wait for, whatever is cached."""

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """See `Picker`."""
        return _least_loaded(scored, range(len(scored)), choice.rng)


class ConsistentHash(Stateless):
    """The owner of the prompt's first blocks; past its share of the load, the next on the ring."""

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """See `Picker`."""
        if choice.owner_key is None:
            return _least_loaded(scored, range(len(scored)), choice.rng)
        places = {unit_id: place for place, unit_id in enumerate(scored.unit_ids)}
        total = sum(scored.running) + 1
        most = math.ceil(BOUNDED_LOAD * total / len(scored))
        for unit_id in choice.ring.preference(choice.owner_key):
            place = places.get(unit_id)
            if place is not None and scored.running[place] < most:
                return place, "owner"
        return _least_loaded(scored, range(len(scored)), choice.rng)


class PowerOfTwo(Stateless):
    """The lighter of two taken at random."""

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """See `Picker`."""
        places = range(len(scored))
        return _least_loaded(scored, choice.rng.sample(places, 2) if len(scored) > 1 else places, choice.rng)


class RoundRobin:
    """Each in turn, by name."""

    def __init__(self) -> None:
        self._last = ""

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """See `Picker`. The turn goes by name, so that candidates may come and go."""
        unit_ids = scored.unit_ids
        later = [unit_id for unit_id in unit_ids if unit_id > self._last]
        return unit_ids.index(min(later or unit_ids)), "turn"

    def took(self, unit_id: str) -> None:
        """See `Picker`."""
        self._last = unit_id


class AnyOne(Stateless):
    """Any, with equal chance."""

    def pick(self, scored: Candidates, choice: Choice) -> tuple[int, str]:
        """See `Picker`."""
        return choice.rng.choice(range(len(scored))), "random"
