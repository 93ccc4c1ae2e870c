"""One unit's cache as its engine tells it: sequencer, adapter, copies and proof together. Pure.

The unit says what changed for routers; the reading side (source) asks it what to do with each batch, and the writing
side (sink) asks it for all that is live when it makes a snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from replica.agent.adapters import Adapter
from replica.agent.copies import Copies, CopiesOverflowError
from replica.agent.mapping import MappedCopies, pages_per_block
from replica.agent.proof import SchemeProof
from replica.agent.regrouping import GroupedCopies
from replica.agent.sequencer import ReplayVerdict, Sequencer, Verdict
from router.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from router.kv.wire import Change, Layer

Payloads = Sequence[tuple[int, bytes]]
"""(sequence, payload) of batches in the order in which they came."""


@dataclass(slots=True)
class Tally:
    """Counts since the agent started."""

    events: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    gaps: int = 0
    restarts: int = 0
    unknown: int = 0


class UnitState:
    """See the module.

    Args:
        unit_id: `replica/rank`.
        adapter: Reads the engine's payloads.
        proof: Candidates of the engine's scheme.
        num_blocks: KV blocks of the GPU tier, or None.
        maps: Name blocks by their tokens where the engine's own names can't be computed.

    Attributes:
        life: Grows whenever what routers know is void and a new epoch must begin.
        last_event_s: Unix time in seconds that the newest batch carries, or None.
        adapters: Roots of LoRA adapters by served name, for names of our own.
        reload_due: Its blocks are to be named anew: a replay from batch 0 may tell their tokens.
        head_lost: The batches before the first one that was read could not be had: blocks may be missing.
    """

    def __init__(
        self, unit_id: str, adapter: Adapter, proof: SchemeProof, num_blocks: int | None, *, maps: bool = False
    ) -> None:
        self.unit_id = unit_id
        self.proof = proof
        self.adapters: Mapping[str, str] = {}
        self.copies: Copies | MappedCopies = Copies(num_blocks)
        self.reload_due = False
        self.tally = Tally()
        self.life = 0
        self.last_event_s: float | None = None
        self.head_lost = False
        self._maps = maps
        self._adapter = adapter
        self._sequencer = Sequencer()

    @property
    def replay_from(self) -> int:
        """Number to ask a replay from."""
        return self._sequencer.replay_from

    @property
    def attached(self) -> bool:
        """Whether any batch of this life was read, or the engine is known to have sent none."""
        return self._sequencer.expected is not None

    @property
    def mapped(self) -> MappedCopies | None:
        """What it holds under names of our own, where the engine's can't be computed; else None."""
        return self.copies if isinstance(self.copies, MappedCopies) else None

    def layers(self) -> list[Layer]:
        """Return all that is live."""
        return list(self.copies.layers())

    def judge(self, sequence: int, payload: bytes) -> Verdict:
        """Return what a live batch is, and count it; `accept` it when it is in order."""
        verdict = self._sequencer.judge(sequence, hash(payload))
        if verdict is Verdict.DUPLICATE:
            self.tally.duplicates += 1
        return verdict

    def accept(self, sequence: int, payload: bytes) -> list[Change]:
        """Apply the next batch; return what changed for routers, in order."""
        self._sequencer.accept(sequence, hash(payload))
        batch = self._adapter.read(payload)
        self.tally.skipped.update(batch.skipped)
        if batch.at_s is not None:
            self.last_event_s = batch.at_s
        changes: list[Change] = []
        for event in batch.events:
            self.tally.events[type(event).__name__] += 1
            try:
                self._apply(event, changes)
            except CopiesOverflowError:
                # Removals were lost. What is live is not known, so we begin again from nothing.
                changes.clear()
                self.forget()
        return changes

    def restart(self, proof: SchemeProof | None = None) -> None:
        """Begin a new life of the engine: nothing is cached, numbers start again at 0, the scheme is to be proven."""
        self.tally.restarts += 1
        self._sequencer.restart()
        self.head_lost = False
        if proof is not None:
            self.proof = proof
            self.copies = Copies(self.copies.num_blocks)
        self._void()

    def give_up(self, sequence: int) -> None:
        """Batches before `sequence` can't be had: what the unit holds is unknown, and `sequence` is the next one."""
        self.head_lost = True
        self._sequencer.jump(sequence)
        self.forget()

    def detach(self) -> None:
        """Know neither what the unit holds nor where in the engine's batches we are: as before the first one."""
        self._sequencer.restart()
        self.forget()

    def forget(self) -> None:
        """What the unit holds is unknown since now."""
        self.tally.unknown += 1
        self._void()

    def absorb(self, start: int, replayed: Payloads) -> tuple[ReplayVerdict, list[Change]]:
        """Apply a replay; return what it was and what changed.

        On OTHER_LIFE and IMPOSSIBLE nothing is applied. TRUNCATED has begun a new life when batches in the middle were
        lost (see `life`); what came is applied: blocks stored since then and not removed are live.
        """
        verdict = self._sequencer.judge_replay(start, [(number, hash(payload)) for number, payload in replayed])
        changes: list[Change] = []
        if verdict in (ReplayVerdict.OTHER_LIFE, ReplayVerdict.IMPOSSIBLE):
            return verdict, changes
        if verdict is ReplayVerdict.TRUNCATED:
            self.give_up(replayed[0][0])
        if not replayed and not self.attached:
            self._sequencer.jump(0)
        life = self.life
        for number, payload in replayed:
            if self._sequencer.judge(number, hash(payload)) is Verdict.IN_ORDER:
                changes += self.accept(number, payload)
                if self.life != life:
                    life = self.life
                    changes.clear()
        return verdict, changes

    def _void(self) -> None:
        self.copies.clear()
        self.life += 1

    def _map_when_refuted(self, event: BlockStored, changes: list[Change]) -> None:
        """Name blocks by their tokens from here on, where the engine's own names can't be computed."""
        if not self._maps or self.proof.state != "refuted" or self.mapped is not None:
            return
        if not event.token_ids or not event.hashes:
            return
        kind = GroupedCopies if pages_per_block(event.block_size) > 1 else MappedCopies
        had = len(self.copies)
        self.copies = kind(self.copies.num_blocks, event.block_size, self.adapters)
        if had:
            changes.clear()
            self.forget()
        self.reload_due = had > 0

    def _apply(self, event: Event, changes: list[Change]) -> None:
        if isinstance(event, BlockStored):
            self.proof.see(event)
            self._map_when_refuted(event, changes)
            fresh = self.copies.store(event)
            if fresh:
                changes.append(Change("stored", int(event.tier), event.group, int(event.kind), fresh))
        elif isinstance(event, BlockRemoved):
            gone = self.copies.remove(event)
            if gone:
                kind = self.copies.kind(event.tier, event.group)
                changes.append(Change("removed", int(event.tier), event.group, int(kind), gone))
        elif isinstance(event, AllBlocksCleared):
            self.copies.clear()
            changes.append(Change("cleared"))
