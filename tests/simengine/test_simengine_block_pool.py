"""Blocks: who holds them, what they cache, which goes next."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from replica.simengine.core.block_pool import BlockPool
from replica.simengine.core.events import BlockRemoved, CacheCleared


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def fill(pool: BlockPool, numbers: list[int]) -> list[int]:
    """Allocate and store one block for each number."""
    blocks = pool.allocate(len(numbers))
    pool.store(blocks, [key(number) for number in numbers], None)
    return blocks


def removed(pool: BlockPool) -> list[int]:
    """Numbers of the contents evicted since the last call, in order."""
    return [int.from_bytes(event.key, "big") for event in pool.take_events() if isinstance(event, BlockRemoved)]


def test_the_placeholder_is_never_handed_out() -> None:
    """An engine of 4 blocks serves 3, and says what it has: block 0 is not among them."""
    pool = BlockPool(4)
    assert pool.usable_blocks == 3
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    with pytest.raises(ValueError, match="1 blocks asked, 0 free"):
        pool.allocate(1)


def test_the_deepest_block_of_the_request_that_ended_first_is_evicted_first() -> None:
    """Eviction goes by request, oldest first, and within one from its tail to its head."""
    pool = BlockPool(7)
    first = fill(pool, [1, 2, 3])
    second = fill(pool, [11, 12, 13])
    pool.release(first)
    pool.release(second)
    pool.allocate(5)
    assert removed(pool) == [3, 2, 1, 13, 12]


def test_a_block_without_content_is_reused_before_anything_is_evicted() -> None:
    """A request's last, partly filled block comes back at the front."""
    pool = BlockPool(4)
    blocks = fill(pool, [1, 2]) + pool.allocate(1)
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert removed(pool) == []


def test_a_hit_saves_a_block_from_eviction() -> None:
    """A block that is held again leaves the free list, and goes back to its end."""
    pool = BlockPool(4)
    first = fill(pool, [1])
    pool.release(first)
    pool.release(fill(pool, [2]))
    pool.hold(pool.lookup([key(1)], limit=1))
    pool.release(first)
    pool.allocate(3)
    assert removed(pool) == [2, 1]


def test_each_copy_of_a_content_is_found_until_the_last_is_gone() -> None:
    """Equal blocks are not merged: the first is found, each eviction is announced by itself."""
    pool = BlockPool(4)
    one, two = fill(pool, [7]), fill(pool, [7])
    assert pool.lookup([key(7)], limit=1) == one
    assert pool.cached_keys == 1
    pool.release(one)
    pool.release(two)
    pool.allocate(2)
    assert removed(pool) == [7]
    assert pool.lookup([key(7)], limit=1) == two
    pool.allocate(1)
    assert removed(pool) == [7]
    assert pool.lookup([key(7)], limit=1) == []


def test_a_lookup_ends_at_the_first_gap_and_at_its_limit() -> None:
    """Only a leading run counts as a prefix."""
    pool = BlockPool(8)
    blocks = fill(pool, [1, 2, 4])
    assert pool.lookup([key(1), key(2), key(3), key(4)], limit=4) == blocks[:2]
    assert pool.lookup([key(1), key(2)], limit=1) == blocks[:1]


def test_a_reset_waits_for_the_last_holder() -> None:
    """It refuses while a block is held; then all content is gone and one event says so."""
    pool = BlockPool(4)
    blocks = fill(pool, [1, 2])
    assert not pool.reset()
    pool.release(blocks)
    assert pool.reset()
    assert pool.take_events() == [CacheCleared()]
    assert pool.lookup([key(1)], limit=1) == []
    pool.allocate(3)
    assert removed(pool) == []


class PoolMachine(RuleBasedStateMachine):
    """Any order of requests that come, hit, grow and go."""

    held = Bundle("held")

    @initialize(blocks=strategies.integers(2, 12))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.requests: list[list[int]] = []
        self.copies: Counter[bytes] = Counter()

    def note_events(self) -> None:
        for event in self.pool.take_events():
            if isinstance(event, BlockRemoved):
                self.copies[event.key] -= 1
            elif isinstance(event, CacheCleared):
                self.copies.clear()

    @rule(target=held, prompt=strategies.lists(strategies.integers(0, 3), max_size=6), tail=strategies.integers(0, 2))
    def admit(self, prompt: list[int], tail: int) -> list[int]:
        """A request hits what it can, and stores the rest; its keys name all that came before them."""
        keys = [bytes(prompt[: end + 1]) for end in range(len(prompt))]
        hit = self.pool.lookup(keys, len(keys))
        needed = len(keys) - len(hit) + tail
        if needed + self.pool.unreferenced(hit) > self.pool.free_blocks:
            return []
        self.pool.hold(hit)
        new = self.pool.allocate(needed)
        self.note_events()
        stored = keys[len(hit) :]
        self.pool.store(new[: len(stored)], stored, None)
        self.copies.update(stored)
        blocks = hit + new
        self.requests.append(blocks)
        return blocks

    @rule(blocks=consumes(held))
    def end(self, blocks: list[int]) -> None:
        if blocks:
            self.requests.remove(blocks)
            self.pool.release(blocks)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == (not any(self.requests))
        self.note_events()

    @invariant()
    def references_are_the_holders(self) -> None:
        """No count is negative, and each is the number of requests that hold the block."""
        holders = Counter(block for blocks in self.requests for block in blocks)
        assert self.pool.references == [holders[block] for block in range(self.pool.num_blocks)]

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        """Free and held blocks are all there are, the placeholder left out, and none is both."""
        free = self.pool.free_list()
        held = {block for blocks in self.requests for block in blocks}
        assert len(free) == len(set(free)) == self.pool.free_blocks
        assert not held & set(free)
        assert held | set(free) == set(range(1, self.pool.num_blocks))

    @invariant()
    def events_count_the_copies(self) -> None:
        """Stored less removed is what the blocks hold, and what a lookup finds."""
        content = Counter(key for key in self.pool.keys if key is not None)
        assert content == +self.copies
        assert self.pool.cached_keys == len(content)
        for key in content:
            assert self.pool.keys[self.pool.lookup([key], 1)[0]] == key


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
