"""Samples of chains: bounded in number, memory, age and rate, whatever comes."""

from __future__ import annotations

from router.telemetry import chain_samples
from router.telemetry.chain_samples import MAX_BLOCKS, MAX_SAMPLES, PER_S, ChainSamples


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_slow_router_s_requests_are_all_taken():
    """At 4 a second, each is."""
    clock = Clock()
    samples = ChainSamples(clock)
    for number in range(40):
        clock.now_s += 0.25
        samples.offer("tiny", 16, [number], 16)
    assert [sample.chain[0] for sample in samples.latest()] == list(range(40))


def test_a_busy_router_s_are_taken_at_about_the_wanted_rate():
    """At 4,000 a second, 16 a second are wanted: after it has settled, half to twice as many are taken."""
    clock = Clock()
    samples = ChainSamples(clock)
    for _ in range(40_000):
        clock.now_s += 1 / 4_000
        samples.offer("tiny", 16, [1], 16)
    taken = sum(sample.at_s > clock.now_s - 5 for sample in samples.latest())
    assert 5 * PER_S / 2 <= taken <= 5 * PER_S * 2


def test_when_it_gets_quiet_again_all_are_taken_again():
    """The rate is followed downwards, too."""
    clock = Clock()
    samples = ChainSamples(clock)
    for _ in range(20_000):
        clock.now_s += 1 / 4_000
        samples.offer("tiny", 16, [1], 16)
    for _ in range(2_000):
        clock.now_s += 1.0
        samples.offer("tiny", 16, [2], 16)
    assert sum(sample.at_s > clock.now_s - 100 for sample in samples.latest()) >= 99


def test_memory_is_bounded_in_samples_and_in_blocks():
    """The oldest go; a chain that would take all of the room alone is left out."""
    clock = Clock()
    samples = ChainSamples(clock)
    for number in range(2 * MAX_SAMPLES):
        clock.now_s += 0.07
        samples.offer("tiny", 16, [number], 16)
    assert len(samples) == MAX_SAMPLES
    for number in range(5):
        clock.now_s += 1.0
        samples.offer("tiny", 16, [number] * (MAX_BLOCKS // 2), 16)
    assert sum(len(sample.chain) for sample in samples.latest()) <= MAX_BLOCKS
    clock.now_s += 1.0
    samples.offer("tiny", 16, [7] * (MAX_BLOCKS + 1), 16)
    assert max(len(sample.chain) for sample in samples.latest()) == MAX_BLOCKS // 2


def test_what_was_hot_is_forgotten():
    """Samples of more than two minutes ago are not told."""
    clock = Clock()
    samples = ChainSamples(clock)
    samples.offer("tiny", 16, [1], 16)
    clock.now_s += chain_samples.MAX_AGE_S + 1
    assert samples.latest() == []
