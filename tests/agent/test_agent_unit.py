"""One unit's state follows its engine, on the real engine's own frames."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.proof import SchemeProof
from replica.agent.sequencer import ReplayVerdict, Verdict
from replica.agent.unit import UnitState
from router.kv.events import GroupKind
from router.kv.wire import Change


def unit(num_blocks: int | None = None) -> UnitState:
    return UnitState("r0/0", VllmAdapter(), SchemeProof("none", 16, None), num_blocks)


def payload(*events: object, at_s: float = 1.0) -> bytes:
    return msgspec.msgpack.encode([at_s, list(events), 0])


def live(state: UnitState) -> set[tuple[int, int, int]]:
    return {(h, tier, group) for tier, group, _, hashes in state.layers() for h in hashes}


def true_content(frames: list[tuple[bytes, int, bytes]]) -> set[tuple[int, int]]:
    """Count the recording's copies by itself: (hash, group) with more stores than removals since the last clear."""
    counts: Counter[tuple[int, int]] = Counter()
    for _, _, data in frames:
        for event in msgspec.msgpack.decode(data)[1]:
            if event["type"] == "AllBlocksCleared":
                counts.clear()
                continue
            for block in event["block_hashes"]:
                number = block if isinstance(block, int) else int.from_bytes(block[-8:], "big")
                counts[(number, event["group_idx"])] += 1 if event["type"] == "BlockStored" else -1
    return {key for key, count in counts.items() if count > 0}


@pytest.mark.parametrize(
    "name", ["eviction_int_block32", "hybrid_groups", "sha256_cbor_bytes_block16", "sha256_int_block32"]
)
def test_a_recording_replays_to_its_true_content(name: str, recordings) -> None:  # type: ignore[no-untyped-def]
    """What the unit holds at the end, and what a set-keeping reader of its changes holds, is what the engine holds."""
    state, reader = unit(), set()
    for _, sequence, data in recordings[name]:
        assert state.judge(sequence, data) is Verdict.IN_ORDER
        for change in state.accept(sequence, data):
            blocks = {(h, change.group) for h in change.hashes}
            reader = set() if change.op == "cleared" else reader | blocks if change.op == "stored" else reader - blocks
    assert {(h, group) for h, _, group in live(state)} == reader == true_content(recordings[name])


def test_the_eviction_run_ends_at_22_blocks(recordings) -> None:  # type: ignore[no-untyped-def]
    """Of 230 stores and 208 removals, 33 of each concern a further copy of a live block and are not told: 22 live."""
    state = unit()
    told: Counter[str] = Counter()
    for _, sequence, data in recordings["eviction_int_block32"]:
        for change in state.accept(sequence, data):
            told[change.op] += len(change.hashes)
    assert told == {"stored": 230 - 33, "removed": 208 - 33}
    assert len(live(state)) == 22


def test_hybrid_groups_are_kept_apart_with_their_kinds(recordings) -> None:  # type: ignore[no-untyped-def]
    """Group 0 of the hybrid recording slides, group 1 is full; hashes are shared between them."""
    state = unit()
    for _, sequence, data in recordings["hybrid_groups"]:
        state.accept(sequence, data)
    kinds = {group: kind for _, group, kind, _ in state.layers()}
    assert kinds == {0: GroupKind.WINDOW, 1: GroupKind.FULL}
    by_group = [{h for h, _, group in live(state) if group == wanted} for wanted in (0, 1)]
    assert by_group[0] & by_group[1]
    assert state.group_tails == {0: (63, 32)}  # a window of 64 tokens, by blocks of 32


def test_a_clear_keeps_its_place_in_the_batch(events) -> None:  # type: ignore[no-untyped-def]
    """Ten blocks, then clear and one store in one batch: that one block is left, and the changes say so in order."""
    state = unit()
    state.accept(0, payload(events.stored(list(range(10)))))
    changes = state.accept(1, payload(events.cleared, events.stored([5])))
    assert changes == [Change("cleared"), Change("stored", 0, 0, 0, [5])]
    assert live(state) == {(5, 0, 0)}


def test_a_sparse_store_is_indexed_by_its_hashes_alone(events) -> None:  # type: ignore[no-untyped-def]
    """One hash over 32 tokens at block size 16 is one block."""
    state = unit()
    state.accept(0, payload(events.stored([7], tokens=list(range(32)))))
    assert live(state) == {(7, 0, 0)}


def test_removing_the_gpu_copy_keeps_the_cpu_copy(events) -> None:  # type: ignore[no-untyped-def]
    """A block in two tiers is removed from one."""
    state = unit()
    state.accept(0, payload(events.stored([7]), events.stored([7], medium="CPU"), events.removed([7])))
    assert live(state) == {(7, 1, 0)}


def test_an_overflow_makes_the_cache_unknown_and_goes_on(events) -> None:  # type: ignore[no-untyped-def]
    """More distinct blocks than the engine has: cleared, a new life, and later events count."""
    state = unit(num_blocks=4)
    life = state.life
    state.accept(0, payload(events.stored([1, 2, 3])))
    state.accept(1, payload(events.stored([4, 5]), events.stored([6])))
    assert state.life == life + 1
    assert state.tally.unknown == 1
    assert live(state) == {(6, 0, 0)}


def test_a_restart_empties_the_unit(events) -> None:  # type: ignore[no-untyped-def]
    """Batch 0 with other content is a new life: nothing of the old one is left."""
    state = unit()
    state.accept(0, payload(events.stored([1]), at_s=1.0))
    fresh = payload(events.stored([2]), at_s=2.0)
    assert state.judge(0, fresh) is Verdict.RESTART
    state.restart()
    state.accept(0, fresh)
    assert live(state) == {(2, 0, 0)}


def test_a_replay_fills_a_gap_exactly(events) -> None:  # type: ignore[no-untyped-def]
    """Batches 1 and 2 were missed: after the replay the unit holds what an uninterrupted one holds."""
    batches = [payload(events.stored([i]), at_s=float(i)) for i in range(4)]
    state = unit()
    state.accept(0, batches[0])
    assert state.judge(3, batches[3]) is Verdict.GAP
    verdict, changes = state.absorb(state.replay_from, list(enumerate(batches))[0:4])
    assert verdict is ReplayVerdict.WHOLE
    assert [list(change.hashes) for change in changes] == [[1], [2], [3]]
    assert state.judge(3, batches[3]) is Verdict.DUPLICATE
    assert state.life == 0


def test_a_truncated_replay_makes_the_cache_unknown(events) -> None:  # type: ignore[no-untyped-def]
    """Batches in the middle are lost for good: a new life, holding what came since."""
    batches = [payload(events.stored([i]), at_s=float(i)) for i in range(6)]
    state = unit()
    state.accept(0, batches[0])
    verdict, _ = state.absorb(0, [(4, batches[4]), (5, batches[5])])
    assert verdict is ReplayVerdict.TRUNCATED
    assert (state.life, state.head_lost) == (1, True)
    assert live(state) == {(4, 0, 0), (5, 0, 0)}
    assert state.judge(6, payload()) is Verdict.IN_ORDER
