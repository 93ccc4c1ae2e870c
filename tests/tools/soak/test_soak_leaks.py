"""What is a leak, and what is not."""

from __future__ import annotations

import os

import pytest

from router.tools.soak.leaks import FILES, GROWTH_BYTES, KEYS, Lives, Sample, growth, sample

MIB = 2**20


def lives(rss: list[int], files: list[int] | None = None, keys: list[int] | None = None) -> Lives:
    found = Lives(keys=keys or [])
    for number, each in enumerate(rss):
        found.samples["router-0", 1].append(Sample(1_000 * number, each, (files or [20] * len(rss))[number]))
    return found


def test_growth_is_between_medians_after_the_first_third() -> None:
    """Caches that fill, and a single look, are none."""
    assert growth([10, 80, 100, 100, 100, 100]) == 0
    assert growth([0, 0, 0, 100, 100, 900, 100, 100, 100]) == 0
    assert growth([0, 0, 10, 20, 30, 40]) == 20
    assert growth([0, 0, 1_000]) == 0  # too few to tell


def test_memory_that_goes_on_growing_is_a_leak() -> None:
    """At a steady pace, over the allowance; a process that shrinks or fills a cache first is none."""
    step = GROWTH_BYTES // 2
    [told] = lives([100 * MIB + step * number for number in range(9)]).problems()
    assert told.startswith("router-0: its memory grew by")
    assert not lives([100 * MIB, 200 * MIB, *([220 * MIB] * 7)]).problems()
    assert not lives([300 * MIB - MIB * number for number in range(9)]).problems()


def test_files_and_keys_that_grow_are_leaks() -> None:
    """Descriptors of a process, and keys of Redis."""
    steady = [100 * MIB] * 9
    [files] = lives(steady, [20 + FILES * number for number in range(9)]).problems()
    assert "open files" in files
    [keys] = lives(steady, keys=[50 + KEYS * number for number in range(9)]).problems()
    assert keys.startswith("Redis")


def test_a_new_life_is_judged_by_itself() -> None:
    """What started again has other memory than what was before it."""
    found = lives([100 * MIB] * 5)
    found.samples["router-0", 2] = [Sample(9_000, 400 * MIB, 90)] * 5
    assert not found.problems()
    assert set(found.to_dict()["lives"]) == {"router-0/1", "router-0/2"}


def test_a_process_is_sampled() -> None:
    """Its resident memory and its descriptors; nothing of one that is gone."""
    before = sample(os.getpid(), 1)
    assert before is not None
    assert before.rss_bytes > MIB
    pipe = os.pipe()
    try:
        after = sample(os.getpid(), 2)
    finally:
        for each in pipe:
            os.close(each)
    assert after is not None
    assert after.files == before.files + 2
    assert sample(2**22 + 1, 3) is None


@pytest.mark.parametrize("looks", [1, 2])
def test_what_is_allowed_is_known_after_two_looks(looks: int) -> None:
    """The first is before any traffic to speak of."""
    allowed = lives([MIB] * looks).files_allowed("router-0", 1)
    assert allowed == (None if looks == 1 else 20 + FILES)
