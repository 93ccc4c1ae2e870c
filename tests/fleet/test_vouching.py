"""Verdicts add up to trust: slowly down, more slowly up, each model and kind for itself."""

from __future__ import annotations

import pytest

from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.replica import Unit
from router.fleet.vouching import MAX_RECORDS, Doubt, Record, TrustChange, Verdict, Vouching, VouchState
from router.kv.schemes import HashAlgorithm, Scheme

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
GOOD, MISMATCH, UNDECIDED = Verdict.GOOD, Verdict.MISMATCH, Verdict.UNDECIDED


class Bench:
    """One unit that serves a model and an adapter of it."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, VouchState]] = []
        self.vouching = Vouching(self._changed)
        self.fleet = Fleet()
        self.unit = self.announce()
        self.blocks = 0

    def announce(self, root: str = "/adapters/1", block_size: int = 16) -> Unit:
        models = (ServedModel("base", "base"), ServedModel("lora", root, parent="base"))
        scheme = Scheme(HashAlgorithm.SHA256_CBOR, block_size)
        facts = UnitFacts("r0/0", 0, scheme, Trust.EXACT, 64)
        self.fleet.announce(ReplicaFacts("r0", "http://r0:8000", "redis", models, (facts,)), 0.0)
        return self.fleet.units["r0/0"]

    def judge(self, *verdicts: Verdict, model: str = "base", kind: str = "chat", **facts: bool | None) -> Record:
        record = self.vouching.record(self.unit, model, kind)
        for verdict in verdicts:
            self.blocks += 1
            self.vouching.judge(self.unit, record, verdict, block=self.blocks, **facts)  # type: ignore[arg-type]
        return record

    def _changed(self, change: TrustChange) -> None:
        self.changes.append((change.record.model, change.record.kind, change.record.state))


def test_five_mismatches_in_twenty_end_trust_and_not_before() -> None:
    """4 of 20 are borne for ever, 5 of 20 are not."""
    bench = Bench()
    record = bench.judge(*([MISMATCH] * 4 + [GOOD] * 16) * 3)
    assert record.state is VouchState.VOUCHED
    record = bench.judge(*[MISMATCH] * 5)
    assert (record.state, bench.changes) == (VouchState.DISTRUSTED, [("base", "chat", VouchState.DISTRUSTED)])
    assert bench.vouching.trust(bench.unit, record) is Trust.APPROXIMATE


def test_twenty_good_in_a_row_bring_trust_back() -> None:
    """19 do not, and a mismatch among them begins the count anew; each change is told once."""
    bench = Bench()
    bench.judge(*[MISMATCH] * 8)
    record = bench.judge(*[GOOD] * 19, MISMATCH, *[GOOD] * 19)
    assert record.state is VouchState.DISTRUSTED
    bench.judge(GOOD)
    assert (record.state, record.reason) == (VouchState.VOUCHED, None)
    assert [state for _, _, state in bench.changes] == [VouchState.DISTRUSTED, VouchState.VOUCHED]
    assert not bench.vouching.doubts


def test_old_mismatches_do_not_count_again_after_trust_is_back() -> None:
    """Four new ones are needed less than five."""
    bench = Bench()
    bench.judge(*[MISMATCH] * 5, *[GOOD] * 20)
    assert bench.judge(*[MISMATCH] * 4).state is VouchState.VOUCHED
    assert bench.judge(MISMATCH).state is VouchState.DISTRUSTED


def test_undecided_verdicts_change_nothing() -> None:
    """They neither end trust, nor bring it back, nor interrupt a row."""
    bench = Bench()
    record = bench.judge(*[UNDECIDED] * 100)
    assert (record.state, record.reason, record.undecided) == (VouchState.UNPROVEN, None, 100)
    bench.judge(*[MISMATCH] * 5, *[GOOD] * 10, *[UNDECIDED] * 30, *[GOOD] * 10)
    assert record.state is VouchState.VOUCHED


def test_the_same_prompt_again_is_no_further_evidence() -> None:
    """A hot prompt that the engine held before its agent came can't end trust by itself."""
    bench = Bench()
    record = bench.vouching.record(bench.unit, "base", "chat")
    counted = [bench.vouching.judge(bench.unit, record, MISMATCH, block=7) for _ in range(30)]
    assert counted == [MISMATCH] + [UNDECIDED] * 29
    assert record.state is VouchState.UNPROVEN


def test_other_kinds_and_models_are_untouched() -> None:
    """One unit, chats of one model distrusted."""
    bench = Bench()
    bench.judge(*[MISMATCH] * 5)
    completions = bench.judge(GOOD, kind="completion")
    assert bench.vouching.is_distrusted(bench.unit, "base", "chat")
    assert not bench.vouching.is_distrusted(bench.unit, "base", "completion")
    assert not bench.vouching.is_distrusted(bench.unit, "lora", "chat")
    assert bench.vouching.trust(bench.unit, completions) is Trust.EXACT


def test_chats_that_fail_beside_good_completions_have_another_template() -> None:
    """The tokenizer and the hashes are proven by the completions."""
    bench = Bench()
    bench.judge(GOOD, kind="completion")
    assert bench.judge(*[MISMATCH] * 5, equal_length=True).reason is Doubt.TEMPLATE


def test_an_adapter_that_fails_beside_its_good_base_has_another_path() -> None:
    """The text is the same, the extra key is not."""
    bench = Bench()
    bench.judge(GOOD)
    assert bench.judge(*[MISMATCH] * 5, model="lora").reason is Doubt.ADAPTER_PATH


@pytest.mark.parametrize(
    ("equal_length", "doubt"), [(True, Doubt.HASHES), (False, Doubt.TOKENIZER), (None, Doubt.TOKENIZER)]
)
def test_completions_fail_by_hashes_or_by_tokens(equal_length: bool | None, doubt: Doubt) -> None:
    """As many tokens under other hashes, or another number of tokens."""
    record = Bench().judge(*[MISMATCH] * 5, kind="completion", equal_length=equal_length)
    assert record.reason is doubt


def test_the_reason_is_looked_at_again_as_more_is_known() -> None:
    """Chats failed first; then completions turn out to be good."""
    bench = Bench()
    record = bench.judge(*[MISMATCH] * 5, equal_length=True)
    assert record.reason is Doubt.HASHES
    bench.judge(GOOD, kind="completion")
    assert bench.judge(MISMATCH).reason is Doubt.TEMPLATE


def test_a_unit_that_announces_nothing_is_told_of() -> None:
    """Prompts were computed and no block was announced; that is no mismatch."""
    record = Bench().judge(*[UNDECIDED] * 5, silent=True)
    assert (record.state, record.reason) == (VouchState.UNPROVEN, Doubt.EVENTS_MISSING)


def test_verdicts_on_a_chain_made_otherwise_do_not_count() -> None:
    """A new adapter path and a new scheme begin anew."""
    bench = Bench()
    bench.judge(*[MISMATCH] * 5, model="lora")
    bench.announce(root="/adapters/2")
    assert bench.judge(model="lora").state is VouchState.UNPROVEN
    assert not bench.vouching.is_distrusted(bench.unit, "lora", "chat")
    bench.judge(*[MISMATCH] * 5)
    bench.announce(root="/adapters/2", block_size=32)
    assert bench.judge().state is VouchState.UNPROVEN


def test_a_unit_that_left_is_forgotten() -> None:
    """Nothing of it is kept."""
    bench = Bench()
    bench.judge(*[MISMATCH] * 5)
    bench.vouching.forget(bench.unit)
    assert (bench.vouching.records_of(bench.unit), bench.vouching.doubts) == ([], False)


def test_records_are_bounded() -> None:
    """Adapters without end: the longest unused is forgotten, with its doubts."""
    bench = Bench()
    bench.judge(*[MISMATCH] * 5, model="first")
    for number in range(MAX_RECORDS):
        bench.judge(GOOD, model=f"adapter-{number}")
    assert len(bench.vouching.records_of(bench.unit)) == MAX_RECORDS
    assert not bench.vouching.doubts
