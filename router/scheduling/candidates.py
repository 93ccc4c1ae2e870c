"""All candidates of one prompt: a few figures of each, all in tokens, as one list a figure.

There may be hundreds, and every request is scored: rules read and write whole lists, which is several times as fast as
an object a candidate. Whoever wants one candidate, to explain a choice or to say it in words, gets a `Candidate`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, overload

from router.scheduling.candidate import Candidate

_FIGURES: dict[str, float] = {
    "unit_ids": 0,
    "replica_ids": 0,
    "trusts": 0,
    "matched_tokens": 0,
    "expected_tokens": 0,
    "backlog_tokens": 0,
    "prefill_tokens_per_s": 0,
    "running": 0,
    "trust_shares": 1.0,
    "cpu_tokens": 0,
    "disk_tokens": 0,
    "kv_usage_shares": 0.0,
    "held_tokens": 0.0,
}
"""The lists, each with what stands for a candidate that has none."""


@dataclass(slots=True, eq=False)  # not frozen, which takes four times as long to make
class Packed:
    """Figures as `router.native.weighing` leaves them: few candidates are ever looked at.

    Attributes:
        figures: Columns of doubles (backlog, speed, held tokens), then of 32-bit counts (held and expected blocks,
            running requests; where there are tiers, blocks on the CPU and on disk).
        block_size: In tokens.
        longest_blocks: The longest match.
        has_cpu, has_disk, has_held: Which of the lists that may be None are not.
        score: Gives the candidates their costs.
    """

    figures: bytes
    block_size: int
    longest_blocks: int
    has_cpu: bool
    has_disk: bool
    has_held: bool
    score: Callable[[Candidates], object]


class Candidates(Sequence[Candidate]):
    """See `Candidate` for what the figures mean. Lists are in one order, and those given are not changed.

    Attributes:
        cpu_tokens, disk_tokens: None where all that any of them matches is on the GPU.
        trust_shares: None where every match counts whole.
        kv_usage_shares, held_tokens: None where nobody asks for them.
        costs: Filled in by `score`, as are `terms`: for each scorer what it gave each candidate.
    """

    __slots__ = (
        "_made",
        "_packed",
        "backlog_tokens",
        "costs",
        "cpu_tokens",
        "disk_tokens",
        "expected_tokens",
        "held_tokens",
        "kv_usage_shares",
        "matched_tokens",
        "prefill_tokens_per_s",
        "prompt_tokens",
        "replica_ids",
        "running",
        "terms",
        "trust_shares",
        "trusts",
        "unit_ids",
    )

    def __init__(
        self,
        prompt_tokens: int,
        unit_ids: Sequence[str],
        replica_ids: Sequence[str],
        trusts: Sequence[str],
        matched_tokens: Sequence[int],
        expected_tokens: Sequence[int],
        backlog_tokens: Sequence[float],
        prefill_tokens_per_s: Sequence[float],
        running: Sequence[int],
        trust_shares: Sequence[float] | None = None,
        cpu_tokens: Sequence[int] | None = None,
        disk_tokens: Sequence[int] | None = None,
        kv_usage_shares: Sequence[float] | None = None,
        held_tokens: Sequence[float] | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.unit_ids = unit_ids
        self.replica_ids = replica_ids
        self.trusts = trusts
        self.matched_tokens = matched_tokens
        self.expected_tokens = expected_tokens
        self.backlog_tokens = backlog_tokens
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.running = running
        self.trust_shares = trust_shares
        self.cpu_tokens = cpu_tokens
        self.disk_tokens = disk_tokens
        self.kv_usage_shares = kv_usage_shares
        self.held_tokens = held_tokens
        self.terms: Sequence[Sequence[float]] = ()
        self.costs: Sequence[float] = ()
        self._made: list[Candidate | None] | None = None
        self._packed: Packed | None = None

    @classmethod
    def weighed(
        cls,
        prompt_tokens: int,
        unit_ids: Sequence[str],
        replica_ids: Sequence[str],
        trusts: Sequence[str],
        trust_shares: Sequence[float] | None,
        packed: Packed,
    ) -> Candidates:
        """Return candidates that were weighed already; their figures become lists when somebody asks."""
        made = cls.__new__(cls)
        made.prompt_tokens = prompt_tokens
        made.unit_ids = unit_ids
        made.replica_ids = replica_ids
        made.trusts = trusts
        made.trust_shares = trust_shares
        made._made = None
        made._packed = packed
        return made

    def __getattr__(self, name: str) -> Any:
        """A figure that is not there yet: unpack all."""
        packed = None if name.startswith("_") else self._packed
        if packed is None:
            raise AttributeError(name)
        self._packed = None
        self._unpack(packed)
        packed.score(self)
        return getattr(self, name)

    def _unpack(self, packed: Packed) -> None:
        many, size = len(self.unit_ids), packed.block_size
        at, figures, counts = 3 * many * 8, array("d"), array("i")
        figures.frombytes(packed.figures[:at])
        counts.frombytes(packed.figures[at:])
        self.backlog_tokens = figures[:many].tolist()
        self.prefill_tokens_per_s = figures[many : 2 * many].tolist()
        self.held_tokens = figures[2 * many :].tolist() if packed.has_held else None
        self.matched_tokens = [size * blocks for blocks in counts[:many]]
        self.expected_tokens = [size * blocks for blocks in counts[many : 2 * many]]
        self.running = counts[2 * many : 3 * many].tolist()
        self.cpu_tokens = [size * blocks for blocks in counts[3 * many : 4 * many]] if packed.has_cpu else None
        self.disk_tokens = [size * blocks for blocks in counts[4 * many :]] if packed.has_disk else None
        self.kv_usage_shares = None
        self.terms, self.costs = (), ()

    @property
    def longest_tokens(self) -> int:
        """The longest match of any."""
        packed = self._packed
        return max(self.matched_tokens) if packed is None else packed.longest_blocks * packed.block_size

    @classmethod
    def of(cls, items: Sequence[Candidate]) -> Candidates:
        """Return these as they are, or gathered from single candidates, which are then told their costs, too."""
        if isinstance(items, Candidates):
            return items
        gathered = cls(
            items[0].prompt_tokens,
            [item.unit_id for item in items],
            [item.replica_id for item in items],
            [item.trust for item in items],
            [item.matched_tokens for item in items],
            [item.expected_tokens for item in items],
            [item.backlog_tokens for item in items],
            [item.prefill_tokens_per_s for item in items],
            [item.running for item in items],
            [item.trust_share for item in items],
            [item.cpu_tokens for item in items],
            [item.disk_tokens for item in items],
            [item.kv_usage_share for item in items],
            [item.held_tokens for item in items],
        )
        gathered._made = list(items)
        return gathered

    def uncached_tokens(self, cpu_share: float = 1.0, disk_share: float = 1.0) -> list[float]:
        """Return the tokens that each would have to compute: see `Candidate.uncached_tokens`."""
        usable: Sequence[float] = self.expected_tokens
        if self.cpu_tokens is not None:
            usable = [all_ - on * (1 - cpu_share) for all_, on in zip(usable, self.cpu_tokens, strict=True)]
        if self.disk_tokens is not None:
            usable = [all_ - on * (1 - disk_share) for all_, on in zip(usable, self.disk_tokens, strict=True)]
        prompt = self.prompt_tokens
        if self.trust_shares is None:
            return [prompt - tokens for tokens in usable]
        return [prompt - share * tokens for share, tokens in zip(self.trust_shares, usable, strict=True)]

    def score(self, terms: Sequence[Sequence[float]]) -> None:
        """Give each candidate its cost, the sum of its terms.

        Args:
            terms: By scorer, at least one.
        """
        self.terms = terms
        costs = terms[0]
        for term in terms[1:]:
            costs = list(map(add, costs, term))
        self.costs = costs
        if self._made is not None:
            for place, item in enumerate(self._made):
                if item is not None:
                    item.cost = self.costs[place]
                    item.terms = tuple(term[place] for term in terms)

    def __add__(self, others: Candidates) -> Candidates:
        """Return these and others of the same prompt, none of them scored."""

        def both(name: str, nothing: float) -> Any:
            own, other = getattr(self, name), getattr(others, name)
            if own is None and other is None:
                return None
            return [*(own or [nothing] * len(self)), *(other or [nothing] * len(others))]

        joined = {name: both(name, nothing) for name, nothing in _FIGURES.items()}
        return Candidates(self.prompt_tokens, **joined)

    def __len__(self) -> int:
        return len(self.unit_ids)

    @overload
    def __getitem__(self, place: int) -> Candidate: ...
    @overload
    def __getitem__(self, place: slice) -> list[Candidate]: ...
    def __getitem__(self, place: int | slice) -> Candidate | list[Candidate]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if self._made is None:
            self._made = [None] * len(self.unit_ids)
        made = self._made[place]
        if made is None:
            made = self._made[place] = self._make(place)
        return made

    def __iter__(self) -> Iterator[Candidate]:
        return map(self.__getitem__, range(len(self.unit_ids)))

    def _make(self, place: int) -> Candidate:
        return Candidate(
            self.unit_ids[place],
            self.replica_ids[place],
            self.prompt_tokens,
            self.matched_tokens[place],
            0 if self.cpu_tokens is None else self.cpu_tokens[place],
            0 if self.disk_tokens is None else self.disk_tokens[place],
            self.expected_tokens[place],
            1.0 if self.trust_shares is None else self.trust_shares[place],
            self.backlog_tokens[place],
            self.prefill_tokens_per_s[place],
            self.running[place],
            self.trusts[place],
            tuple(term[place] for term in self.terms),
            self.costs[place] if self.costs else 0.0,
            0.0 if self.kv_usage_shares is None else self.kv_usage_shares[place],
            0.0 if self.held_tokens is None else self.held_tokens[place],
        )


NO_CANDIDATES = Candidates(0, (), (), (), (), (), (), (), ())
