"""Proof while running: each request's predicted blocks are looked for among those that its unit announces.

A request that was computed must have stored the full blocks of its prompt that were not cached. Its last block's hash
depends on all tokens before, so that one alone proves the prompt; a few before it tell how far it agreed. The verdict
waits until the event lag has passed and the unit was heard after that, and needs a feed without a gap. An agent that
lives may not have read its engine's last events yet, or they wait with it for a Redis that hung, or they were lost on
the way: so a mismatch waits until something came that the engine made later, or until its agent must have found what it
missed.

- the last block was announced: good, even when it is evicted by now;
- it was not, and the unit announced others: a mismatch;
- anything else is undecided: the feed was interrupted, nothing was stored, the engine read the blocks from its cache
  (it may have had them before its agent came; where it does not say what it read, that can't be ruled out).

The same for requests of kinds that are distrusted, so trust comes back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.fleet.facts import Trust
from router.fleet.replica import Unit
from router.fleet.vouching import Record, Verdict, Vouching
from router.index.announced import AnnouncedBlocks, Watch
from router.index.prefix_index import PrefixIndex
from router.request.prompt import Prompt
from router.scheduling.decision import Outcome

SAMPLES = 4
"""Blocks looked out for, of one request: the first and the last that must be stored, and some between."""
SETTLE_EVERY_S = 0.05
PATIENCE_S = 30.0
"""How long a verdict may wait for the unit to be heard, and for the answer's end with the engine's own figures."""


UNREAD_S = 6.0
"""A quiet unit's agent looks for events that it missed each 3 s, and waits 2 s for its engine's answer."""


class Evidence:
    """One placed request's blocks. `Proving` alone changes it."""

    __slots__ = (
        "block_size",
        "cached_tokens",
        "due_s",
        "ended",
        "engine_tokens",
        "expire_s",
        "places",
        "record",
        "tokens",
        "unit",
        "watch",
    )

    def __init__(self, unit: Unit, record: Record, watch: Watch, places: Sequence[int], tokens: int, size: int) -> None:
        self.unit = unit
        self.record = record
        self.watch = watch
        self.places = places
        self.tokens = tokens
        self.block_size = size
        self.due_s: float | None = None
        self.expire_s = 0.0
        self.ended = False
        self.cached_tokens: int | None = None
        self.engine_tokens: int | None = None


class Proving:
    """Collects evidence and judges it.

    Args:
        event_lag_s: What engines' events may be behind their answers.
        on_verdict: Called with each verdict.
    """

    def __init__(
        self,
        index: PrefixIndex,
        announced: AnnouncedBlocks,
        vouching: Vouching,
        event_lag_s: float = 0.2,
        on_verdict: Callable[[Verdict], None] | None = None,
    ) -> None:
        self.announced = announced
        self.vouching = vouching
        self._index = index
        self.event_lag_s = event_lag_s
        self._on_verdict = on_verdict
        self._computed: list[Evidence] = []
        self._settled_s = 0.0

    def record(self, unit: Unit, prompt: Prompt) -> Record | None:
        """Return where verdicts on a prompt's kind at a unit are counted; None where the unit reports no blocks."""
        if unit.scheme is None or not prompt.reads_cache or unit.trust not in (Trust.EXACT, Trust.MAPPED):
            return None
        return self.vouching.record(unit, unit.replica.asked_model(prompt.model), prompt.kind)

    def begin(
        self, record: Record, unit: Unit, prompt: Prompt, chain: Sequence[int], held_blocks: int
    ) -> Evidence | None:
        """A prompt was placed.

        Args:
            record: From `record`.
            chain: As the unit's engine would name its blocks.
            held_blocks: How many of the first ones the unit announced that it holds.

        Returns:
            None where nothing can be learned of it.
        """
        # Of a block that is made of several only the last one is announced.
        step = min((stride for _, stride in unit.strides), default=1)
        places = self._places(unit.slot, chain, held_blocks, step)
        if not places:
            return None
        watch = self.announced.watch(unit.slot, [chain[place] for place in places])
        if watch is None:
            return None
        tokens = 0 if prompt.reason is not None else prompt.tokens
        return Evidence(unit, record, watch, places, tokens, record.scheme.block_size if record.scheme else 1)

    def computed(self, evidence: Evidence, now_s: float) -> None:
        """Its first token came, or a whole good answer: what it must store is stored. Once for each."""
        evidence.due_s = now_s + self.event_lag_s
        evidence.expire_s = evidence.due_s + PATIENCE_S
        self._computed.append(evidence)

    def ended(self, evidence: Evidence, outcome: Outcome) -> None:
        """The request ended, however it did. Once for each."""
        evidence.ended = True
        evidence.cached_tokens = outcome.cached_tokens
        evidence.engine_tokens = outcome.prompt_tokens
        if evidence.due_s is None:
            self.announced.end(evidence.watch)

    def settle(self, now_s: float) -> None:
        """Judge what is due."""
        if not self._computed or 0 <= now_s - self._settled_s < SETTLE_EVERY_S:
            return
        self._settled_s = now_s
        waiting = []
        for evidence in self._computed:
            verdict = _verdict(evidence, now_s)
            if verdict is None:
                waiting.append(evidence)
                continue
            self.announced.end(evidence.watch)
            self._judge(evidence, verdict)
        self._computed = waiting

    def _judge(self, evidence: Evidence, verdict: Verdict) -> None:
        watch = evidence.watch
        agreed = [place for place in evidence.places if watch.hashes[evidence.places.index(place)] in watch.seen]
        counted = self.vouching.judge(
            evidence.unit,
            evidence.record,
            verdict,
            block=watch.hashes[-1],
            agreed_tokens=(max(agreed) + 1 if agreed else evidence.places[0]) * evidence.block_size,
            silent=watch.whole and not watch.stored_blocks,
            equal_length=evidence.engine_tokens == evidence.tokens
            if evidence.engine_tokens is not None and evidence.tokens
            else None,
        )
        if self._on_verdict is not None:
            self._on_verdict(counted)

    def _places(self, slot: int, chain: Sequence[int], held_blocks: int, step: int) -> list[int]:
        """Choose blocks that the unit does not hold: what it holds it need not announce again."""
        last = len(chain) // step * step - 1
        missing = last - held_blocks
        if missing < 0 or self._index.holds(slot, chain[last]):
            return []
        places: list[int] = []
        for sample in range(SAMPLES):  # rising
            place = (held_blocks + missing * sample // (SAMPLES - 1)) // step * step + step - 1
            if (not places or place > places[-1]) and not self._index.holds(slot, chain[place]):
                places.append(place)
        return places


def _verdict(evidence: Evidence, now_s: float) -> Verdict | None:
    """Return what follows by now; None while it may still change."""
    watch = evidence.watch
    if watch.hashes[-1] in watch.seen:
        return Verdict.GOOD
    if not watch.whole:
        return Verdict.UNDECIDED
    expired = now_s >= evidence.expire_s
    if evidence.due_s is None or watch.heard_s < evidence.due_s:
        return Verdict.UNDECIDED if expired else None
    if not evidence.ended and not expired:
        return None
    if evidence.cached_tokens is None and not evidence.unit.whole:
        return Verdict.UNDECIDED
    read_blocks = (evidence.cached_tokens or 0) // evidence.block_size
    if not watch.stored_blocks or read_blocks >= evidence.places[-1]:
        return Verdict.UNDECIDED
    if not _was_read(evidence):
        return Verdict.UNDECIDED if expired else None
    return Verdict.MISMATCH


def _was_read(evidence: Evidence) -> bool:
    """Tell whether the agent must have read what its engine announced of this request."""
    watch, due_s = evidence.watch, evidence.due_s
    return due_s is not None and (watch.batch_s >= due_s or watch.read_s >= due_s + UNREAD_S)
