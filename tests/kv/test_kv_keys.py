"""Key names and lanes."""

from __future__ import annotations

import re

import pytest

from router.kv.keys import Keys, lane_of


def test_a_unit_and_its_stream_share_one_slot() -> None:
    """All keys that one script touches have the lane's hash tag, so Redis Cluster takes the script."""
    keys = Keys("wr", 16)
    unit = "r7/1"
    tag = f"{{wr:{lane_of(unit)}}}"
    names = [
        keys.stream_of(unit),
        keys.epoch(unit),
        keys.lease(unit),
        keys.snapshot_pointer(unit),
        keys.snapshot(unit, 3),
    ]
    assert [re.match(r"\{[^}]*\}", name).group() for name in names] == [tag] * 5  # type: ignore[union-attr]


def test_all_keys_of_all_units_are_distinct() -> None:
    """No two units, and no two kinds of key, share a name."""
    keys = Keys()
    units = [f"r{i}/{rank}" for i in range(50) for rank in range(3)]
    names = [of(u) for u in units for of in (keys.epoch, keys.lease, keys.snapshot_pointer)]
    names += [keys.snapshot(u, n) for u in units for n in (1, 2)]
    assert len(set(names)) == len(names)


def test_a_lane_is_stable_and_in_range() -> None:
    """The lane is fixed by xxh64 of the name: other processes rely on it."""
    import xxhash

    assert lane_of("r0/0", 16) == xxhash.xxh64(b"r0/0").intdigest() % 16
    assert {lane_of(f"r{i}/0", 4) for i in range(100)} == {0, 1, 2, 3}


@pytest.mark.parametrize(("namespace", "lanes"), [("", 16), ("a{b", 16), ("a}", 16), ("wr", 0)])
def test_names_that_break_hash_tags_are_refused(namespace: str, lanes: int) -> None:
    """A namespace with braces would move keys to other slots."""
    with pytest.raises(ValueError):
        Keys(namespace, lanes)
