"""The fleet: who is in it, and in what state."""

from __future__ import annotations

from dataclasses import replace

from router.fleet.facts import EngineLoad, ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.replica import ReplicaState
from router.kv.schemes import HashAlgorithm, Scheme

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


def facts(name: str = "r0", port: int = 8000, ranks: int = 1) -> ReplicaFacts:
    """A replica that serves `tiny` and the adapter `ad`."""
    models = (ServedModel("tiny", "tiny"), ServedModel("ad", "/adapters/ad", parent="tiny"))
    units = tuple(UnitFacts(f"{name}/{rank}", rank, SCHEME, Trust.EXACT, 100) for rank in range(ranks))
    return ReplicaFacts(name, f"http://10.0.0.1:{port}", "redis", models, units)


def test_a_replica_told_again_keeps_what_is_in_flight() -> None:
    """Feeds announce every second; nothing is lost by it."""
    fleet = Fleet()
    unit = fleet.announce(facts(), 0.0).units[0]
    unit.in_flight.reserve(10, 0.0)
    assert fleet.announce(facts(), 1.0).units[0].in_flight.requests == 1


def test_the_same_name_under_another_url_is_another_process() -> None:
    """Its units begin anew."""
    withdrawn = []
    fleet = Fleet(on_unit_withdrawn=withdrawn.append)
    old = fleet.announce(facts(port=8000), 0.0).units[0]
    new = fleet.announce(facts(port=8001), 1.0).units[0]
    assert withdrawn == [old]
    assert new.serial != old.serial


def test_a_freed_slot_is_used_again_and_a_serial_never() -> None:
    """Masks stay narrow however many replicas come and go."""
    fleet = Fleet()
    serials = set()
    for port in range(8000, 8200):
        unit = fleet.announce(facts(port=port), 0.0).units[0]
        assert unit.slot == 0
        serials.add(unit.serial)
        fleet.withdraw("r0")
    assert len(serials) == 200
    assert not fleet.units


def test_fewer_ranks_withdraw_the_rest() -> None:
    """A replica restarted with fewer ranks has fewer units."""
    fleet = Fleet()
    fleet.announce(facts(ranks=3), 0.0)
    fleet.announce(facts(ranks=2), 1.0)
    assert list(fleet.units) == ["r0/0", "r0/1"]


def test_three_failures_in_a_row_eject_and_one_good_answer_resets() -> None:
    """A success in between begins the count again."""
    fleet = Fleet(eject_after=3, eject_s=10)
    replica = fleet.announce(facts(), 0.0)
    fleet.failed("r0", 0.0)
    fleet.failed("r0", 0.0)
    fleet.succeeded("r0")
    assert not fleet.failed("r0", 0.0)
    assert not fleet.failed("r0", 0.0)
    assert fleet.failed("r0", 0.0)
    assert replica.state(1.0) is ReplicaState.EJECTED


def test_an_ejected_replica_gets_one_probe_at_a_time() -> None:
    """When its time is over one request may try it; the next when the probe has ended, or much later."""
    fleet = Fleet(eject_after=1, eject_s=10)
    replica = fleet.announce(facts(), 0.0)
    fleet.failed("r0", 0.0)
    assert replica.state(10.0) is ReplicaState.READY
    fleet.probed(replica, 10.0)
    assert replica.state(10.1) is ReplicaState.EJECTED
    fleet.succeeded("r0")
    assert replica.state(10.2) is ReplicaState.READY


def test_down_and_draining_replicas_are_not_ready() -> None:
    """Probes and drains take a replica out, and put it back."""
    fleet = Fleet()
    replica = fleet.announce(facts(), 0.0)
    fleet.mark_down("r0", "health probe failed")
    assert replica.state(0.0) is ReplicaState.DOWN
    fleet.mark_up("r0")
    fleet.mark_draining("r0")
    assert replica.state(0.0) is ReplicaState.DRAINING
    fleet.mark_draining("r0", False)
    assert fleet.ready_count(0.0) == 1


def test_a_replica_that_was_down_is_told_of_when_it_is_up() -> None:
    """Once for each time it was down: probes that pass all along say nothing."""
    told: list[str] = []
    fleet = Fleet(on_replica_returned=lambda replica: told.append(replica.replica_id))
    fleet.announce(facts(), 0.0)
    fleet.mark_up("r0")
    assert told == []
    fleet.mark_down("r0", "health probe failed")
    fleet.mark_up("r0")
    fleet.mark_up("r0")
    assert told == ["r0"]


def test_an_adapter_leads_to_its_base_model() -> None:
    """Its prompts are tokenised as the base model's."""
    fleet = Fleet()
    fleet.announce(facts(), 0.0)
    assert (fleet.base_model("ad"), fleet.base_model("tiny"), fleet.base_model("none")) == ("tiny", "tiny", None)


def test_an_adapter_is_as_long_as_its_base_model() -> None:
    """Engines give no length for an adapter; where replicas don't agree on the base model's there is none."""
    fleet = Fleet()
    adapter = ServedModel("ad", "/adapters/ad", parent="tiny")
    fleet.announce(replace(facts(), models=(ServedModel("tiny", "tiny", max_model_len=4096), adapter)), 0.0)
    assert [fleet.max_model_len(name) for name in ("tiny", "ad", "none")] == [4096, 4096, None]
    shorter = (ServedModel("tiny", "tiny", max_model_len=2048), adapter)
    fleet.announce(replace(facts("r1", 8001), models=shorter), 0.0)
    assert fleet.max_model_len("tiny") is fleet.max_model_len("ad") is None


def test_the_version_tells_when_views_are_stale() -> None:
    """It grows with members, models and schemes, and with nothing else."""
    fleet = Fleet()
    fleet.announce(facts(), 0.0)
    before = fleet.version
    fleet.announce(facts(), 1.0)
    assert fleet.version == before
    fleet.announce(replace(facts(), models=(ServedModel("other", "other"),)), 2.0)
    assert fleet.version > before


def test_a_probe_that_passes_ends_an_ejection_for_refused_connections_alone() -> None:
    """It shows that the replica is reached again, not that it would answer requests."""
    fleet = Fleet(eject_after=1, eject_s=60)
    replica = fleet.announce(facts(), 0.0)
    fleet.failed("r0", 0.0, refused_connection=True)
    fleet.mark_up("r0")
    assert replica.state(1.0) is ReplicaState.READY
    fleet.failed("r0", 1.0)
    fleet.mark_up("r0")
    assert replica.state(2.0) is ReplicaState.EJECTED


def test_each_probe_that_fails_doubles_the_pause() -> None:
    """Up to the longest; a good one begins anew. Failures of requests that were on their way do not count."""
    fleet = Fleet(eject_after=1, eject_s=10, eject_max_s=60)
    replica = fleet.announce(facts(), 0.0)
    now_s, pauses = 0.0, []
    fleet.failed("r0", now_s)
    fleet.failed("r0", now_s)
    for _ in range(5):
        pauses.append(replica.ejected_until_s - now_s)
        now_s = replica.ejected_until_s
        assert fleet.probed(replica, now_s)
        fleet.failed("r0", now_s)
    assert pauses == [10, 20, 40, 60, 60]
    fleet.succeeded("r0")
    fleet.failed("r0", now_s)
    assert replica.ejected_until_s == now_s + 10


def test_a_probe_that_hangs_is_the_only_one() -> None:
    """Until the longest pause is over: it is one client's request."""
    fleet = Fleet(eject_after=1, eject_s=10, eject_max_s=60)
    replica = fleet.announce(facts(), 0.0)
    fleet.failed("r0", 0.0)
    assert fleet.probed(replica, 10.0)
    assert replica.state(60.0) is ReplicaState.EJECTED
    assert replica.state(70.0) is ReplicaState.READY


def test_a_probe_whose_client_left_shows_nothing() -> None:
    """The next request is one at once."""
    fleet = Fleet(eject_after=1, eject_s=10)
    replica = fleet.announce(facts(), 0.0)
    fleet.failed("r0", 0.0)
    assert fleet.probed(replica, 10.0)
    fleet.probe_ended(replica, 12.0)
    assert replica.state(12.0) is ReplicaState.READY
    assert fleet.probed(replica, 12.0)


def test_what_is_held_is_what_the_engine_says_and_what_was_placed_since() -> None:
    """100 blocks of 16 tokens, a quarter of them in use: 400 tokens, and 70 that came after the report."""
    fleet = Fleet()
    unit = fleet.announce(facts(), 0.0).units[0]
    unit.in_flight.reserve(30, 0.0, context_tokens=500)
    assert unit.held_tokens(0.0) == 500
    fleet.report_load("r0/0", EngineLoad(1, 0, 0.25, 1.0))
    assert unit.held_tokens(1.0) == 400
    unit.in_flight.reserve(70, 1.5, context_tokens=800)
    assert unit.held_tokens(1.5) == 470
    fleet.report_load("r0/0", EngineLoad(2, 0, 0.5, 2.0))
    assert unit.held_tokens(2.0) == 800


def test_old_figures_of_an_engine_say_nothing_of_what_is_held() -> None:
    """After 5 s it is the router's own prompts again, as for engines that never told."""
    fleet = Fleet()
    unit = fleet.announce(facts(), 0.0).units[0]
    fleet.report_load("r0/0", EngineLoad(0, 0, 1.0, 1.0))
    unit.in_flight.reserve(70, 1.5, context_tokens=800)
    assert unit.held_tokens(6.0) == 1_670
    assert unit.held_tokens(6.1) == 800
