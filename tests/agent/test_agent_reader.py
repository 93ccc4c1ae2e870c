"""The reading side, on real sockets, through gaps, lost tails, restarts and late attachment."""

from __future__ import annotations

import time

import pytest


async def test_events_become_live_blocks(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Stored and removed blocks show up, and what is told is what changed."""
    one = await attach()
    publisher.publish([events.stored([1, 2, 3])])
    publisher.publish([events.removed([2])])
    await eventually(lambda: one.live() == {1, 3})
    assert [(change.op, list(change.hashes)) for change in one.told] == [("stored", [1, 2, 3]), ("removed", [2])]


async def test_the_recorded_eviction_run_ends_at_22_blocks(attach, publisher, recordings, eventually) -> None:  # type: ignore[no-untyped-def]
    """The real engine's frames, sent over ZMQ, leave 22 live blocks."""
    one = await attach()
    for frames in recordings["eviction_int_block32"]:
        publisher.publish_payload(frames[2])
    await eventually(lambda: one.unit.tally.events["BlockRemoved"] == 208 and len(one.live()) == 22)


async def test_a_gap_is_filled_by_replay(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Two batches are lost on the way: after the next one the unit holds all, in the same epoch."""
    one = await attach()
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    publisher.publish([events.stored([2])], lose=True)
    publisher.publish([events.removed([1])], lose=True)
    publisher.publish([events.stored([3])])
    await eventually(lambda: one.live() == {2, 3})
    assert one.epochs == 0


async def test_a_gap_waits_for_a_replay_that_is_silent_for_a_while(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Silence is no loss: the engine is asked again, and the unit goes on whole in the same epoch."""
    one = await attach()
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    publisher.replay_silent = True
    publisher.publish([events.stored([2])], lose=True)
    asked, lost_s = len(publisher.replays), time.monotonic()
    publisher.publish([events.stored([3])])
    await eventually(lambda: len(publisher.replays) >= asked + 2)
    assert one.reader.read_until_s < lost_s + 1  # it goes on living, and does not say that it read what waits
    publisher.replay_silent = False
    await eventually(lambda: one.live() == {1, 2, 3})
    assert one.epochs == 0
    await eventually(lambda: one.reader.read_until_s > lost_s + 1)


async def test_a_dead_engine_s_silence_is_not_taken_for_having_read_it(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """What it announced last may be lost: until it answers again, nothing later than its last frame counts as read."""
    one = await attach()
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    publisher.replay_silent = True
    asked, silent_s = len(publisher.replays), time.monotonic()
    await eventually(lambda: len(publisher.replays) > asked, timeout_s=20)
    assert one.reader.read_until_s <= silent_s
    publisher.replay_silent = False
    await eventually(lambda: one.reader.read_until_s > silent_s, timeout_s=20)


async def test_an_engine_without_replay_is_read_as_far_as_its_socket_is_empty(
    attach, publisher, events, eventually
) -> None:  # type: ignore[no-untyped-def]
    """Nobody can be asked: what has not come by now is taken for not sent."""
    one = await attach(replay=False)
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    now_s = time.monotonic()
    await eventually(lambda: one.reader.read_until_s > now_s)


async def test_a_replay_that_is_silent_for_good_is_waited_for_once(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """After that the cache is unknown, and the next gap costs one question."""
    one = await attach()
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    publisher.replay_silent = True
    publisher.publish([events.stored([2])], lose=True)
    publisher.publish([events.stored([3])])
    await eventually(lambda: one.live() == {3})
    asked = len(publisher.replays)
    publisher.publish([events.stored([4])], lose=True)
    publisher.publish([events.stored([5])])
    await eventually(lambda: one.live() == {5})
    assert len(publisher.replays) <= asked + 2  # one for the gap, one for silence before or after it


async def test_a_lost_tail_is_found_while_idle(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """The last batch is lost and nothing follows: comparing with replay finds it."""
    one = await attach()
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    publisher.publish([events.stored([2])], lose=True)
    await eventually(lambda: one.live() == {1, 2})
    assert one.epochs == 0


@pytest.mark.parametrize(
    ("spoil", "left"),
    [(lambda batches: batches[-1:], {3, 4}), (lambda batches: batches[::-1], {4}), (lambda batches: batches[::2], {4})],
    ids=["truncated", "backwards", "with holes"],
)
async def test_a_gap_that_cant_be_filled_makes_the_cache_unknown(  # type: ignore[no-untyped-def]
    spoil, left, attach, publisher, events, eventually
) -> None:
    """A replay that is truncated or impossible: cleared, a new epoch, and what comes then counts."""
    one = await attach()
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    publisher.replay_answer = lambda batches: spoil(batches)
    publisher.publish([events.stored([2])], lose=True)
    publisher.publish([events.stored([3])], lose=True)
    publisher.replay_answer = lambda batches: spoil([b for b in batches if b[0] < 3])
    publisher.publish([events.stored([4])])
    await eventually(lambda: 4 in one.live())
    assert one.live() == left
    assert one.epochs >= 1
    assert one.unit.tally.unknown >= 1


async def test_without_a_replay_socket_a_gap_makes_the_cache_unknown(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Replay is off unless configured: a gap then costs the unit's cache, and nothing else."""
    one = await attach(replay=False)
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    publisher.publish([events.stored([2])], lose=True)
    publisher.publish([events.stored([3])])
    await eventually(lambda: one.live() == {3})
    assert one.epochs == 1


async def test_a_restart_in_place_begins_a_new_epoch(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """The engine restarts at its address: nothing of the old life is left, everything of the new one is there."""
    one = await attach()
    publisher.publish([events.stored([1])])
    publisher.publish([events.stored([2])])
    await eventually(lambda: one.live() == {1, 2})
    await publisher.restart()
    for block in (11, 12, 13, 14):
        publisher.publish([events.stored([block])])
    await eventually(lambda: one.live() == {11, 12, 13, 14})
    assert one.epochs >= 1


async def test_a_restart_into_silence_is_noticed(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """The restarted engine sends nothing: the old life's blocks are dropped all the same."""
    one = await attach()
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    await publisher.restart()
    await eventually(lambda: one.live() == set())
    assert one.unit.tally.restarts == 1


async def test_attaching_late_reads_the_whole_history(attach, publisher, events) -> None:  # type: ignore[no-untyped-def]
    """What the replay buffer holds from batch 0 on is known at once."""
    for block in range(5):
        publisher.publish([events.stored([block])])
    one = await attach()
    assert one.live() == {0, 1, 2, 3, 4}
    assert not one.unit.head_lost


async def test_attaching_too_late_says_that_the_head_is_lost(attach, publisher, events) -> None:  # type: ignore[no-untyped-def]
    """The buffer begins at batch 3: what came since is held, and the unit knows that more may be there."""
    publisher.buffer_steps = 2
    for block in range(5):
        publisher.publish([events.stored([block])])
    one = await attach()
    assert one.live() == {3, 4}
    assert one.unit.head_lost


async def test_frames_that_come_twice_or_late_change_nothing(attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """A duplicate and a reordered frame are counted; two copies stay two copies."""
    one = await attach()
    first = publisher.publish([events.stored([1])])
    second = publisher.publish([events.stored([1])])
    publisher.send(second)
    publisher.send(first)
    await eventually(lambda: one.unit.tally.duplicates == 2)
    publisher.publish([events.removed([1])])
    publisher.publish([events.stored([2])])
    await eventually(lambda: 2 in one.live())
    assert one.live() == {1, 2}
    assert one.epochs == 0


async def test_ranks_have_numbers_of_their_own(new_publisher, attach, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """Three ranks with one topic and equal numbers: no false gap, and a clear of rank 1 leaves rank 2 alone."""
    publishers = [new_publisher(rank) for rank in range(3)]
    ranks = [await attach(to=publisher) for publisher in publishers]
    for step in range(4):
        for rank, publisher in enumerate(publishers):
            publisher.publish([events.stored([10 * rank + step])])
    await eventually(lambda: [len(one.live()) for one in ranks] == [4, 4, 4])
    publishers[1].publish([events.cleared])
    await eventually(lambda: ranks[1].live() == set())
    assert ranks[2].live() == {20, 21, 22, 23}
    assert [one.unit.tally.gaps + one.unit.tally.restarts for one in ranks] == [0, 0, 0]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x92\xcb" + b"\0" * 8 + b"\x91\xc1"])
async def test_no_payload_stops_the_reader(payload, attach, publisher, events, eventually) -> None:  # type: ignore[no-untyped-def]
    """A batch that can't be read is counted, and the next one is applied."""
    one = await attach()
    publisher.publish_payload(payload)
    publisher.publish([events.stored([1])])
    await eventually(lambda: one.live() == {1})
    assert one.unit.tally.skipped["malformed_batch"] == 1
    assert not one.task.done()
