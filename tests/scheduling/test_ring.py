"""The owner ring: stable over order, processes and members (RTE-09)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from router.scheduling.ring import OwnerRing

KEYS = [(key * 0x9E3779B97F4A7C15) % 2**64 for key in range(10_000)]


def owners(*names: str) -> list[str | None]:
    """Who owns each key."""
    ring = OwnerRing()
    ring.set_names(names)
    return [ring.owner(key) for key in KEYS]


def test_order_does_not_matter() -> None:
    """A shuffled fleet moves no key."""
    assert owners("a", "b", "c", "d", "e") == owners("e", "c", "a", "d", "b")


def test_a_new_member_takes_its_share_and_nothing_else_moves() -> None:
    """About one key in six goes to the sixth; when it leaves all is as before."""
    before = owners("a", "b", "c", "d", "e")
    ring = OwnerRing()
    ring.set_names("abcde")
    ring.set_names("abcdef")
    after = [ring.owner(key) for key in KEYS]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"f"}
    assert 0.08 <= len(moved) / len(KEYS) <= 0.25
    ring.set_names("abcde")
    assert [ring.owner(key) for key in KEYS] == before


def test_the_spread_is_even() -> None:
    """No member owns more than 1.3 times its share."""
    counts = Counter(owners("a", "b", "c", "d", "e"))
    assert max(counts.values()) <= 1.3 * len(KEYS) / 5


def test_another_process_with_another_hash_seed_agrees() -> None:
    """Several routers keep a prompt together without talking to each other."""
    program = (
        "from router.scheduling.ring import OwnerRing\n"
        "ring = OwnerRing(); ring.set_names(['a', 'b', 'c'])\n"
        "print(''.join(ring.owner(key * 7919) for key in range(300)))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_an_empty_ring_has_no_owner() -> None:
    """No members, no owner, no error."""
    assert owners() == [None] * len(KEYS)


def test_the_owner_is_the_first_of_the_preference() -> None:
    """Whichever way it is asked for: for keys that were asked before, and after members came and went."""
    ring = OwnerRing("abc")
    for names in ("abc", "abcd", "bcd", "efghijk", "c"):
        ring.set_names(names)
        for key in KEYS[:500]:
            assert ring.owner(key) == ring.owner(key) == next(ring.preference(key))
