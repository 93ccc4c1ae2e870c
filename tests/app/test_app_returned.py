"""What the router put together does when a replica is back after it was down."""

from __future__ import annotations

import pytest

from router.app import App
from router.config_file import parse
from router.fleet.facts import ReplicaFacts, Trust, UnitFacts
from router.kv.schemes import HashAlgorithm, Scheme
from router.texts import ModelTexts

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(("trust", "left"), [(Trust.APPROXIMATE, 0), (Trust.EXACT, 3)])
async def test_a_replica_that_comes_back_begins_with_nothing_remembered(trust: Trust, left: int) -> None:
    """Down and up it has probably restarted: what was sent there counts no more. What events tell is theirs."""
    settings = {"listen": "127.0.0.1:0", "models": [{"name": "tiny"}], "replicas": [{"url": URL}]}
    app = App(parse(settings, {}), ModelTexts())
    scheme = Scheme(HashAlgorithm.SHA256_CBOR, 16)
    app.fleet.announce(ReplicaFacts("r0", URL, "static", (), (UnitFacts("r0/0", 0, scheme, trust, 100),)), 0.0)
    slot = app.fleet.unit("r0/0").slot  # type: ignore[union-attr]
    app.approximate.remember(slot, [1, 2, 3], 100)
    app.fleet.mark_up("r0")
    assert app.index.blocks_of(slot) == 3
    app.fleet.mark_down("r0", "fails its health probes")
    app.fleet.mark_up("r0")
    assert app.index.blocks_of(slot) == left
    await app.close()


async def test_a_new_life_begins_with_nothing_remembered() -> None:
    """A unit's cache is gone, and so is what was sent to it: remembered again, it is there again."""
    settings = {"listen": "127.0.0.1:0", "models": [{"name": "tiny"}], "replicas": [{"url": URL}]}
    app = App(parse(settings, {}), ModelTexts())
    unit = UnitFacts("r0/0", 0, Scheme(HashAlgorithm.SHA256_CBOR, 16), Trust.APPROXIMATE, 100)
    app.fleet.announce(ReplicaFacts("r0", URL, "static", (), (unit,)), 0.0)
    announced = app.fleet.units["r0/0"]
    app.approximate.remember(announced.slot, [1, 2, 3], 100)
    app.fleet.cache_voided(announced)
    assert app.index.blocks_of(announced.slot) == 0
    app.approximate.remember(announced.slot, [1, 2], 100)
    assert app.index.blocks_of(announced.slot) == 2
    await app.close()
