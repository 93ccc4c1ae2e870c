"""How far predictions hold: per unit, model and kind of endpoint, judged by what engines then did.

An agent proves a unit's scheme. That says nothing of what is hashed: the chat template, the tokenizer, an adapter's
path can still be others than the engine's. So each request's predicted blocks are looked for among those that its unit
announces (`router.proving`), and this is where the verdicts add up:

    UNPROVEN --good--> VOUCHED --5 mismatches in 20--> DISTRUSTED --20 good in a row--> VOUCHED

(UNPROVEN falls likewise.) What is not distrusted has the trust of its unit; what is, is APPROXIMATE.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from router.fleet.facts import Trust
from router.fleet.replica import Unit
from router.kv.schemes import Scheme

WINDOW = 20
DOWN_AFTER = 5
"""Mismatches among the last `WINDOW` verdicts that end trust."""
UP_AFTER = 20
"""Good verdicts in a row that bring it back."""
MAX_RECORDS = 256
"""Models and kinds kept for one unit, the longest unused forgotten first: adapters can come without end."""


class VouchState(StrEnum):
    """Whether predictions of one kind are believed."""

    UNPROVEN = "unproven"
    """No verdict yet."""
    VOUCHED = "vouched"
    DISTRUSTED = "distrusted"


class Verdict(StrEnum):
    """What became of one request's predicted blocks."""

    GOOD = "good"
    """The engine stored them."""
    MISMATCH = "mismatch"
    """The engine stored other blocks instead."""
    UNDECIDED = "undecided"
    """Nothing follows: the feed was behind or broken, or the request stored nothing."""


class Doubt(StrEnum):
    """Why predictions fail, as far as it can be told. `EXPLANATIONS` says what to do."""

    TEMPLATE = "template"
    TOKENIZER = "tokenizer"
    ADAPTER_PATH = "adapter_path"
    HASHES = "hashes"
    EVENTS_MISSING = "events_missing"


EXPLANATIONS: dict[Doubt, str] = {
    Doubt.TEMPLATE: "the engine renders chats otherwise: set `models[].chat_template` to its --chat-template",
    Doubt.TOKENIZER: "the engine counts other tokens: give the router the tokenizer of the engine's model",
    Doubt.ADAPTER_PATH: "the adapter's path in the engine's /v1/models (`root`) is not the one that it hashes with",
    Doubt.HASHES: "tokens agree in number, hashes do not: the engine's block size, seed or extra keys are others",
    Doubt.EVENTS_MISSING: "the engine computed prompts and announced no block: see --kv-events-config and its topic",
}


@dataclass(slots=True, eq=False)
class Record:
    """Verdicts on one model and kind at one unit.

    Attributes:
        kind: `chat`, `completion`...
        scheme, adapter_root: What its chains are made with; verdicts on another one do not count.
        good, mismatched, undecided: Verdicts since the record began.
        silent: Undecided ones for which the unit announced nothing at all.
        agreed_tokens: Of the last mismatch: how much of the prompt was as predicted, at least.
        equal_lengths, other_lengths: Mismatches whose prompt was as long for the engine, or was not.
        delivered_as_predicted, delivered_above, delivered_below: Cached tokens that engines reported, against what was
            predicted. Below is mostly eviction, above mostly what the feed had not told yet.
    """

    model: str
    kind: str
    scheme: Scheme | None
    adapter_root: str | None
    state: VouchState = VouchState.UNPROVEN
    reason: Doubt | None = None
    good: int = 0
    mismatched: int = 0
    undecided: int = 0
    silent: int = 0
    agreed_tokens: int = 0
    equal_lengths: int = 0
    other_lengths: int = 0
    delivered_as_predicted: int = 0
    delivered_above: int = 0
    delivered_below: int = 0
    _recent: list[bool] = field(default_factory=list)
    _last_mismatch: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def delivered(self, predicted_tokens: int, cached_tokens: int) -> None:
        """The engine reported what it read from its cache."""
        if cached_tokens == predicted_tokens:
            self.delivered_as_predicted += 1
        elif cached_tokens > predicted_tokens:
            self.delivered_above += 1
        else:
            self.delivered_below += 1


@dataclass(frozen=True, slots=True)
class TrustChange:
    """Predictions of one kind are believed no more, or again."""

    unit: Unit
    record: Record


class Vouching:
    """The owner of verdicts.

    Args:
        on_change: Called when trust ends and when it is back.
    """

    def __init__(self, on_change: Callable[[TrustChange], None] | None = None) -> None:
        self._on_change = on_change
        self._records: dict[int, OrderedDict[tuple[str, str], Record]] = {}
        self._distrusted: dict[int, set[tuple[str, str]]] = {}

    @property
    def doubts(self) -> bool:
        """Whether anything is distrusted anywhere: nearly always not."""
        return bool(self._distrusted)

    def record(self, unit: Unit, model: str, kind: str) -> Record:
        """Return the record of a model and kind at a unit; a new one where its chains are made otherwise now."""
        served = unit.replica.models.get(model)
        root = served.root if served is not None and served.parent is not None else None
        records = self._records.setdefault(unit.serial, OrderedDict())
        key = (model, kind)
        record = records.get(key)
        if record is None or record.scheme != unit.scheme or record.adapter_root != root:
            record = records[key] = Record(model, kind, unit.scheme, root)
            self._believe(unit, key)
            if len(records) > MAX_RECORDS:
                self._believe(unit, records.popitem(last=False)[0])
        records.move_to_end(key)
        return record

    def is_distrusted(self, unit: Unit, model: str, kind: str) -> bool:
        """Whether predictions of this kind are not believed there."""
        return (model, kind) in self._distrusted.get(unit.serial, ())

    def has_doubts(self, unit: Unit) -> bool:
        """Whether predictions of any kind are not believed there."""
        return unit.serial in self._distrusted

    def trust(self, unit: Unit, record: Record) -> Trust:
        """Return how far matches of a record's kind are believed."""
        if record.state is VouchState.DISTRUSTED and unit.trust in (Trust.EXACT, Trust.MAPPED):
            return Trust.APPROXIMATE
        return unit.trust

    def judge(
        self,
        unit: Unit,
        record: Record,
        verdict: Verdict,
        *,
        block: int = 0,
        agreed_tokens: int = 0,
        silent: bool = False,
        equal_length: bool | None = None,
    ) -> Verdict:
        """Count a verdict; return what it counted as.

        The same prompt again is no further evidence: its blocks may lie in the engine since before its agent came.

        Args:
            block: Of a mismatch: the deepest block that was looked for.
            agreed_tokens: Of a mismatch: how much of the prompt was as predicted, at least.
            silent: Of an undecided one: the unit announced nothing at all.
            equal_length: Of a mismatch: whether the engine counted as many prompt tokens; None where it did not say.
        """
        if verdict is Verdict.MISMATCH and not _is_new(record, block):
            verdict = Verdict.UNDECIDED
        if verdict is Verdict.UNDECIDED:
            record.undecided += 1
            record.silent += silent
            if record.state is VouchState.UNPROVEN and record.silent >= DOWN_AFTER:
                record.reason = Doubt.EVENTS_MISSING
            return verdict
        if verdict is Verdict.GOOD:
            record.good += 1
        else:
            record.mismatched += 1
            record.agreed_tokens = agreed_tokens
            record.equal_lengths += equal_length is True
            record.other_lengths += equal_length is False
        recent = record._recent
        recent.append(verdict is Verdict.GOOD)
        del recent[:-WINDOW]
        if record.state is VouchState.DISTRUSTED:
            record.reason = self._diagnose(unit, record)
            if len(recent) >= UP_AFTER and all(recent[-UP_AFTER:]):
                self._turn(unit, record, VouchState.VOUCHED)
        elif recent.count(False) >= DOWN_AFTER:
            self._turn(unit, record, VouchState.DISTRUSTED)
        elif verdict is Verdict.GOOD:
            record.state, record.reason = VouchState.VOUCHED, None
        return verdict

    def records_of(self, unit: Unit) -> list[Record]:
        """Return a unit's records, by model and kind."""
        records: Iterable[Record] = self._records.get(unit.serial, {}).values()
        return sorted(records, key=lambda record: (record.model, record.kind))

    def forget(self, unit: Unit) -> None:
        """A unit left."""
        self._records.pop(unit.serial, None)
        self._distrusted.pop(unit.serial, None)

    def _turn(self, unit: Unit, record: Record, state: VouchState) -> None:
        record.state = state
        record._recent.clear()
        if state is VouchState.DISTRUSTED:
            record.reason = self._diagnose(unit, record)
            self._distrusted.setdefault(unit.serial, set()).add((record.model, record.kind))
        else:
            record.reason = None
            record._last_mismatch.clear()
            self._believe(unit, (record.model, record.kind))
        if self._on_change is not None:
            self._on_change(TrustChange(unit, record))

    def _believe(self, unit: Unit, key: tuple[str, str]) -> None:
        doubted = self._distrusted.get(unit.serial)
        if doubted is not None:
            doubted.discard(key)
            if not doubted:
                del self._distrusted[unit.serial]

    def _diagnose(self, unit: Unit, record: Record) -> Doubt:
        """Tell why a kind fails, from what does not fail beside it."""
        others = [other for other in self._records[unit.serial].values() if other is not record]
        holds = [other for other in others if other.state is VouchState.VOUCHED]
        if record.adapter_root is not None:
            same_kind = [other for other in holds if other.kind == record.kind and other.adapter_root is None]
            if same_kind or record.equal_lengths > record.other_lengths:
                return Doubt.ADAPTER_PATH
        same_model = [other for other in holds if other.model == record.model]
        if record.kind == "chat" and (same_model or record.other_lengths >= record.equal_lengths):
            return Doubt.TEMPLATE
        if record.equal_lengths > record.other_lengths:
            return Doubt.HASHES
        return Doubt.TOKENIZER


def _is_new(record: Record, block: int) -> bool:
    """Note the block of a mismatch; False when it was among the last ones."""
    known = record._last_mismatch
    if block in known:
        return False
    known[block] = None
    if len(known) > WINDOW:
        known.popitem(last=False)
    return True
