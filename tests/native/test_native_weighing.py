"""What the native core that weighs candidates does with figures that no fleet should have: it leaves them to Python."""

from __future__ import annotations

import math
from typing import Any

import pytest

from router import weighing
from router.fleet.facts import ReplicaFacts, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.ledger import UnitLoad
from router.fleet.replica import Unit
from router.kv.schemes import HashAlgorithm, Scheme

pytestmark = pytest.mark.skipif(weighing.weigh is weighing._nothing, reason="the native core was not built")
MOST = 2**31 - 1
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


@pytest.fixture
def units() -> list[Unit]:
    """Two that are alike."""
    fleet = Fleet()
    for name in "ab":
        unit = UnitFacts(name, 0, SCHEME, Trust.EXACT, 4_000)
        fleet.announce(ReplicaFacts(name, f"http://{name}:80", "redis", (), (unit,)), 0.0)
    return [unit for replica in fleet.replicas.values() for unit in replica.units]


def weigh(units: list[Unit], names: list[str] | None = None, tie_tokens: float = 0.0) -> Any:
    """Weigh them for a prompt of 1,000 tokens, of which both hold a block; the second one is its owner."""
    weights = (0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0)
    given = ["a", "b"] if names is None else names
    return weighing.weigh(
        units, given, 100.0, 60.0, None, 16, 1_000, [1, 1], [1, 1], None, None, weights, tie_tokens, "b"
    )


def test_equals_are_told_by_their_owner(units: list[Unit]) -> None:
    """What the others of these tests depart from."""
    (place, lead_tokens), reason, *_ = weigh(units)
    assert (place, lead_tokens, reason) == (1, 0.0, "owner")


@pytest.mark.parametrize("tokens", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_a_backlog_that_is_no_number_is_not_compared(units: list[Unit], tokens: float, which: int) -> None:
    """None would be the lowest, and the winner be read where nothing was written."""
    units[which].peer_tokens = tokens
    assert weigh(units) is None


@pytest.mark.parametrize("tie_tokens", [math.nan, -1.0])
def test_a_tie_that_leaves_nobody_is_not_picked_from(units: list[Unit], tie_tokens: float) -> None:
    """Not even the lowest cost is that low."""
    assert weigh(units, tie_tokens=tie_tokens) is None


def test_requests_past_32_bits_are_not_wrapped(units: list[Unit]) -> None:
    """An engine that tells so many would have less than none, and draw all requests."""
    units[0].sibling_requests = MOST
    assert weigh(units)[3] is not None
    units[0].peer_requests = 1
    assert weigh(units) is None


@pytest.mark.parametrize("emptied", ["names", "units"])
def test_lists_that_change_meanwhile_are_read_no_more(
    units: list[Unit], emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that begins to be computed is asked for by Python, which can do anything."""
    names = ["a", "b"]
    units[1].in_flight.reserve(100, 1.0, context_tokens=100, observable=False, teaches=False)

    def backlog_tokens(load: UnitLoad, now_s: float) -> float:
        (names if emptied == "names" else units).clear()
        return 0.0

    monkeypatch.setattr(UnitLoad, "backlog_tokens", backlog_tokens)
    assert weigh(units, names) is None
    assert not (names if emptied == "names" else units)
