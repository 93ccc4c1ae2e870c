"""`/admin/replicas/{replica}/blocks`: what the index holds, listed and digested."""

from __future__ import annotations

from typing import Any

import xxhash


def held_by(admin: Any, replica_id: str, *blocks: tuple[int, int, int]) -> None:
    """Let the index hold these (hash, tier, group)."""
    slot = admin.fleet.unit(f"{replica_id}/0").slot
    for block, tier, group in blocks:
        admin.index.store(slot, [block], tier, group)


async def test_blocks_are_listed_with_tier_and_group_in_order_of_their_hashes(admins: Any) -> None:
    """Every block of the unit, none of another's; the count is of all, and the digest is over all in order."""
    admin = await admins()
    admin.announce("a", 9001)
    admin.announce("b", 9002)
    held_by(admin, "a", (2**64 - 1, 0, 0), (7, 1, 0), (7, 0, 0), (5, 0, 3))
    held_by(admin, "b", (7, 0, 0), (9, 0, 0))
    status, answer = await admin.get("/admin/replicas/a/blocks")
    assert status == 200
    [unit] = answer["units"]
    listed = [["0000000000000005", 0, 3], ["0000000000000007", 0, 0], ["0000000000000007", 1, 0], ["f" * 16, 0, 0]]
    assert (unit["unit"], unit["trust"], unit["blocks"], unit["listed"]) == ("a/0", "exact", 4, listed)
    packed = b"".join(bytes.fromhex(name) + bytes((0, tier, 0, group)) for name, tier, group in listed)
    assert unit["digest"] == xxhash.xxh64(packed).hexdigest()


async def test_a_long_list_is_read_in_parts(admins: Any) -> None:
    """`limit` bounds the list and not the count; `after` goes on behind a hash."""
    admin = await admins()
    admin.announce("a", 9001)
    held_by(admin, "a", *((number, 0, 0) for number in range(1, 6)))
    _, first = await admin.get("/admin/replicas/a/blocks?limit=2")
    _, rest = await admin.get("/admin/replicas/a/blocks?after=0000000000000002")
    assert [item[0][-1] for item in first["units"][0]["listed"]] == ["1", "2"]
    assert [item[0][-1] for item in rest["units"][0]["listed"]] == ["3", "4", "5"]
    assert first["units"][0]["blocks"] == rest["units"][0]["blocks"] == 5
    assert first["units"][0]["digest"] == rest["units"][0]["digest"]
    held_by(admin, "a", (2, 1, 0))
    _, whole = await admin.get("/admin/replicas/a/blocks?limit=2")
    assert [item[:2] for item in whole["units"][0]["listed"][1:]] == [["0" * 15 + "2", 0], ["0" * 15 + "2", 1]]


async def test_what_is_asked_for_wrongly_is_refused(admins: Any) -> None:
    """An unknown replica is 404, a limit or hash that is none 400, and without the token nothing is told."""
    admin = await admins(admin={"token": "AT-777-token"})
    admin.announce("a", 9001)
    key = {"authorization": "Bearer AT-777-token"}
    status, answer = await admin.get("/admin/replicas/nobody/blocks", **key)
    assert (status, answer["error"]["code"]) == (404, "replica_not_found")
    for query in ("limit=-1", "limit=x", "after=12", "after=" + "g" * 16):
        assert (await admin.get(f"/admin/replicas/a/blocks?{query}", **key))[0] == 400
    assert (await admin.get("/admin/replicas/a/blocks"))[0] == 401


async def test_a_large_index_is_walked_in_slices(admins: Any) -> None:
    """A unit's blocks are found among many times as many of others, and a unit that is cleared meanwhile ends it."""
    admin = await admins()
    admin.announce("a", 9001)
    admin.announce("b", 9002)
    admin.index.store(admin.fleet.unit("b/0").slot, range(100_000))
    admin.index.store(admin.fleet.unit("a/0").slot, range(99_000, 101_000))
    slot = admin.fleet.unit("a/0").slot
    slices = list(admin.index.walk(slot))
    assert len(slices) >= 6, "101,000 entries, about 20,000 a slice"
    assert max(map(len, slices)) < 2_000
    assert {block for part in slices for block in part} == admin.index.dump(slot)
    walking = admin.index.walk(slot, 100)
    next(walking)
    admin.index.clear(slot)
    assert list(walking) == []
