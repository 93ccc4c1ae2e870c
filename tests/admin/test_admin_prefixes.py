"""Hot prefixes: what sampled requests have in common, who holds how much of it, and under which names."""

from __future__ import annotations

from array import array

from router.admin.prefixes import hot_prefixes, merged_prefixes, prefix_views, under_pseudonyms
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.telemetry.chain_samples import ChainSample


def sample(*blocks: int) -> ChainSample:
    return ChainSample("tiny", 16, array("Q", blocks), 16 * len(blocks) + 5, 0.0)


SYSTEM = (1, 2, 3)
"""Three requests begin with it, two of them go on with 4 and 5."""
SAMPLES = [sample(*SYSTEM, 4, 5, 6), sample(*SYSTEM, 4, 5, 7), sample(*SYSTEM, 8), sample(9, 10)]


async def test_a_prefix_ends_where_fewer_requests_go_on_together():
    """5 blocks of 2 requests weigh 160 tokens, 3 blocks of 3 requests 144; what one request alone has is none."""
    found = await hot_prefixes(SAMPLES, 10)
    assert [(each.last, each.blocks, each.requests, each.heat) for each in found] == [(5, 5, 2, 160), (3, 3, 3, 144)]


async def test_what_was_hot_a_while_ago_gives_way():
    """Three requests of 40 s ago weigh as much as three quarters of one of now; each is told with all its requests."""
    old, new = (
        [ChainSample("tiny", 16, array("Q", (1, 2)), 37, 0.0)] * 3,
        [ChainSample("tiny", 16, array("Q", (8, 9)), 37, 40.0)] * 2,
    )
    found = await hot_prefixes([*old, *new], 10)
    assert [(each.last, each.requests, each.lately, each.heat) for each in found] == [
        (9, 2, 2.0, 64.0),
        (2, 3, 0.75, 24.0),
    ]


async def test_long_prefixes_are_found_to_a_sixteenth():
    """Two requests share 1,000 blocks: what is told is at most that, and at least fifteen sixteenths."""
    shared = range(1, 1_001)
    [found] = await hot_prefixes([sample(*shared, *range(2_000, 2_400)), sample(*shared, *range(3_000, 3_400))], 10)
    assert 1_000 * 15 / 16 <= found.blocks <= 1_000
    assert list(found.chain) == list(shared)[: found.blocks]


def fleet_of(*replicas: str) -> Fleet:
    fleet = Fleet()
    for name in replicas:
        unit = UnitFacts(f"{name}/0", 0, Scheme(HashAlgorithm.SHA256_CBOR, 16, None), Trust.EXACT, 100)
        fleet.announce(ReplicaFacts(name, f"http://{name}:1", "redis", (ServedModel("tiny", "/m"),), (unit,)), 0.0)
    return fleet


async def test_each_replica_s_share_is_what_it_holds_from_the_beginning():
    """All five blocks, the first three of five, only the last ones (which no prefix hit can use), nothing."""
    fleet, index = fleet_of("all", "some", "rest", "none"), PrefixIndex()
    for name, blocks in (("all", [1, 2, 3, 4, 5]), ("some", [1, 2, 3]), ("rest", [4, 5])):
        index.store(fleet.units[f"{name}/0"].slot, blocks)
    found = await prefix_views(fleet, index, SAMPLES, 1)
    assert found["sampled_requests"] == 4
    assert found["prefixes"] == [
        {
            "hash": "0000000000000005",
            "model": "tiny",
            "blocks": 5,
            "tokens": 80,
            "requests": 2,
            "heat_tokens": 160.0,
            "held": {"all": 1.0, "some": 0.6},
        }
    ]


async def test_workers_add_up():
    """The same prefix of two workers is one, with the requests of both; what is hotter together comes first."""
    fleet, index = fleet_of("r0"), PrefixIndex()
    one, other = [await prefix_views(fleet, index, part, 10) for part in (SAMPLES, SAMPLES[:3])]
    both = merged_prefixes([one, other], 1)
    assert (both["sampled_requests"], [view["requests"] for view in both["prefixes"]]) == (7, [4])
    assert one["prefixes"][0]["requests"] == 2, "what a worker said is left as it was"


async def test_pseudonyms_tell_nothing_and_stay_the_same():
    """The hash is in no part of the answer; one hash has one name, two have two."""
    found = await prefix_views(fleet_of("r0"), PrefixIndex(), SAMPLES, 10)
    named = under_pseudonyms(found)
    names = [view["hash"] for view in named["prefixes"]]
    assert len(set(names)) == 2
    assert under_pseudonyms(found) == named
    assert not {view["hash"] for view in found["prefixes"]} & {*names}
