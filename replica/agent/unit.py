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
from replica.agent.mapping import MappedCopies, NamedCopies, pages_per_block
from replica.agent.private_state import VERSION, Saved
from replica.agent.proof import SchemeProof
from replica.agent.regrouping import GroupedCopies
from replica.agent.sequencer import ReplayVerdict, Sequencer, Verdict, fingerprint, made_at_s
from router.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, GroupKind, Tier
from router.kv.schemes import HashAlgorithm, Scheme
from router.kv.wire import Change, Layer

CLOCK_SLACK_S = 1.5
"""An engine tells its start in whole seconds of the machine's start plus its own: it is right to about one."""
SAME_START_S = 0.5
MAX_GROUPS = 32
"""Cache groups whose block size is told; no engine has nearly as many."""

Named = MappedCopies | GroupedCopies
"""Copies under names of our own."""
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
    late: int = 0
    """Batches of an earlier life of the engine that came after it had ended."""
    restored: int = 0
    """Times that the state of an earlier agent was taken over."""


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
        engine_started_s: When the engine's process began, as it tells itself (Unix time); None where it does not.
        unverified: It holds what an earlier agent left, and no batch has shown yet that nothing was missed since.
        group_sizes: Tokens a block of each cache group that was seen, where a prefix needs all of the group's blocks.
        group_tails: Of each cache group that keeps ends of prefixes alone: how many tokens before a prefix's end it
            must hold, and the tokens of its blocks.
        head_lost: The batches before the first one that was read could not be had: blocks may be missing.
    """

    def __init__(
        self, unit_id: str, adapter: Adapter, proof: SchemeProof, num_blocks: int | None, *, maps: bool = False
    ) -> None:
        self.unit_id = unit_id
        self.proof = proof
        self.adapters: Mapping[str, str] = {}
        self.copies: Copies | Named = Copies(num_blocks)
        self.reload_due = False
        self.tally = Tally()
        self.life = 0
        self.last_event_s: float | None = None
        self.head_lost = False
        self.group_sizes: dict[int, int] = {}
        self.group_tails: dict[int, tuple[int, int]] = {}
        self.engine_started_s: float | None = None
        self.unverified = False
        self._saved: Saved | None = None
        self._last: tuple[int, int] | None = None
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
    def position(self) -> tuple[int, int] | None:
        """The last batch that was read: number and fingerprint; None before any of this life."""
        return self._last

    @property
    def mapped(self) -> Named | None:
        """What it holds under names of our own, where the engine's can't be computed; else None."""
        return self.copies if isinstance(self.copies, NamedCopies) else None

    def layers(self) -> list[Layer]:
        """Return all that is live."""
        return list(self.copies.layers())

    def judge(self, sequence: int, payload: bytes) -> Verdict:
        """Return what a live batch is, and count it; `accept` it when it is in order."""
        verdict = self._sequencer.judge(sequence, fingerprint(payload))
        if verdict is Verdict.DUPLICATE:
            self.tally.duplicates += 1
        return verdict

    def accept(self, sequence: int, payload: bytes, now_s: float = 0.0) -> list[Change]:
        """Apply the next batch, read at `now_s` (monotonic); return what changed for routers, in order."""
        self.copies.announced.now_s = now_s
        mark = fingerprint(payload)
        self._sequencer.accept(sequence, mark)
        self._last = (sequence, mark)
        self.unverified = False
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

    def disbelieve(self, blocks: Sequence[int], since_s: float) -> list[Change]:
        """A router says that the engine did not find these blocks, asked after `since_s`; return what changed."""
        if self.unverified:
            return []
        found = self.copies.disbelieve(blocks, since_s)
        return [Change("removed", int(Tier.GPU), group, int(kind), gone) for group, kind, gone in found]

    def restart(self, proof: SchemeProof | None = None) -> None:
        """Begin a new life of the engine: nothing is cached, numbers start again at 0, the scheme is to be proven."""
        self.tally.restarts += 1
        self._sequencer.restart()
        self.head_lost = self.unverified = False
        self.last_event_s = self._last = self._saved = None
        self._forget_groups()
        if proof is not None:
            self.proof = proof
            self.copies = Copies(self.copies.num_blocks)
        self._void()

    def give_up(self, sequence: int) -> None:
        """Batches before `sequence` can't be had: what the unit holds is unknown, and `sequence` is the next one."""
        self.head_lost = True
        self.unverified = False
        self._sequencer.jump(sequence)
        self.forget()

    def detach(self) -> None:
        """Know neither what the unit holds nor where in the engine's batches we are: as before the first one."""
        self._sequencer.restart()
        self._last = None
        self.unverified = False
        self._forget_groups()
        self.forget()

    def forget(self) -> None:
        """What the unit holds is unknown since now."""
        self.tally.unknown += 1
        self._void()

    def absorb(self, start: int, replayed: Payloads, now_s: float = 0.0) -> tuple[ReplayVerdict, list[Change]]:
        """Apply a replay; return what it was and what changed.

        On OTHER_LIFE and IMPOSSIBLE nothing is applied. TRUNCATED has begun a new life when batches in the middle were
        lost (see `life`); what came is applied: blocks stored since then and not removed are live.
        """
        if self._saved is not None and not self.attached and replayed:
            if replayed[0][0] > 0 and self._continues(replayed):
                self._take_over(self._saved)
                start = self.replay_from
                replayed = [batch for batch in replayed if batch[0] >= start]
            self._saved = None
        verdict = self._sequencer.judge_replay(start, [(number, fingerprint(payload)) for number, payload in replayed])
        changes: list[Change] = []
        if verdict in (ReplayVerdict.OTHER_LIFE, ReplayVerdict.IMPOSSIBLE):
            return verdict, changes
        if verdict is ReplayVerdict.TRUNCATED:
            self.give_up(replayed[0][0])
        if not replayed and not self.attached:
            self._sequencer.jump(0)
        life = self.life
        for number, payload in replayed:
            if self._sequencer.judge(number, fingerprint(payload)) is Verdict.IN_ORDER:
                changes += self.accept(number, payload, now_s)
                if self.life != life:
                    life = self.life
                    changes.clear()
        return verdict, changes

    def offer(self, saved: Saved) -> None:
        """Let it take over what an earlier agent left, where the engine's own record does not reach back to its start.

        Something of another life is not taken: the engine tells another start, or the batch that both know differs.
        """
        starts = (saved.started_s, self.engine_started_s)
        if saved.unit == self.unit_id and (None in starts or _same_time(*starts)):
            self._saved = saved

    def take_over_unverified(self) -> None:
        """Take over what an earlier agent left where nobody can be asked what was missed: the next batch shows it."""
        saved, self._saved = self._saved, None
        if saved is None or self.attached or not _same_time(saved.started_s, self.engine_started_s):
            return
        self._take_over(saved)
        self.unverified = self.attached

    def saved(self, engine_url: str) -> Saved | None:
        """Return what the next agent needs; None where there is nothing to tell."""
        if self._last is None or self.unverified:
            return None
        scheme = self.proof.scheme
        return Saved(
            VERSION,
            self.unit_id,
            engine_url,
            self.engine_started_s,
            *self._last,
            self.head_lost,
            self.mapped.page_tokens if self.mapped is not None else 0,
            None if scheme is None else (str(scheme.algorithm), scheme.block_size, scheme.seed),
            self.copies.dump(),
            dict(self.group_sizes),
            dict(self.group_tails),
        )

    def is_late(self, payload: bytes) -> bool:
        """Tell whether a batch was made before the engine's present process began, where another one was heard."""
        if not self.tally.restarts or self.engine_started_s is None:
            return False
        made_s = made_at_s(payload)
        return made_s is not None and made_s < self.engine_started_s - CLOCK_SLACK_S

    def _continues(self, replayed: Payloads) -> bool:
        """Tell whether the engine's record goes on where the saved state ends, in the same life."""
        saved = self._saved
        if saved is None:
            return False
        for sequence, payload in replayed:
            if sequence == saved.sequence:
                return fingerprint(payload) == saved.fingerprint
        # The batch itself is gone from the record: then the engine's start must tell that it is the same life.
        return replayed[0][0] == saved.sequence + 1 and _same_time(saved.started_s, self.engine_started_s)

    def _take_over(self, saved: Saved) -> None:
        try:
            scheme = None if saved.scheme is None else Scheme(HashAlgorithm(saved.scheme[0]), *saved.scheme[1:])
            copies = self._empty_copies(saved.page_tokens)
            copies.load(saved.layers)
        except (ValueError, TypeError, OverflowError):
            return
        if scheme is not None:
            self.proof.restore(scheme)
        self.copies = copies
        self.group_sizes, self.group_tails = dict(saved.group_sizes), dict(saved.group_tails)
        self.life += 1
        self.head_lost = saved.head_lost
        self.tally.restored += 1
        self._last = (saved.sequence, saved.fingerprint)
        self._sequencer.accept(saved.sequence, saved.fingerprint)

    def _empty_copies(self, page_tokens: int) -> Copies | Named:
        if not page_tokens:
            return Copies(self.copies.num_blocks)
        kind: type[Named] = GroupedCopies if pages_per_block(page_tokens) > 1 else MappedCopies
        return kind(self.copies.num_blocks, page_tokens, self.adapters)

    def _forget_groups(self) -> None:
        """The next life may be of another model."""
        self.group_sizes, self.group_tails = {}, {}

    def _void(self) -> None:
        self.copies.clear()
        self.life += 1

    def _map_when_refuted(self, event: BlockStored, changes: list[Change]) -> None:
        """Name blocks by their tokens from here on, where the engine's own names can't be computed."""
        if not self._maps or self.proof.state != "refuted" or self.mapped is not None:
            return
        if not event.token_ids or not event.hashes:
            return
        had = len(self.copies)
        self.copies = self._empty_copies(event.block_size)
        if had:
            changes.clear()
            self.forget()
        self.reload_due = had > 0

    def _measure(self, event: BlockStored) -> None:
        """Note the block size of a cache group: the largest one seen, since a block may be announced in part."""
        known = self.group_sizes.get(event.group, 0)
        counts = event.kind is GroupKind.FULL and len(event.token_ids) > 0 and event.block_size > known
        if counts and (known or len(self.group_sizes) < MAX_GROUPS):
            self.group_sizes[event.group] = event.block_size
        if event.tail_tokens and (event.group in self.group_tails or len(self.group_tails) < MAX_GROUPS):
            _, size = self.group_tails.get(event.group, (0, 0))
            self.group_tails[event.group] = (event.tail_tokens, max(size, event.block_size))

    def _apply(self, event: Event, changes: list[Change]) -> None:
        if isinstance(event, BlockStored):
            self.proof.see(event)
            self._measure(event)
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


def _same_time(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= SAME_START_S
