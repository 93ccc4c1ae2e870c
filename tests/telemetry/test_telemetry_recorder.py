"""What the data plane tells: the reuse ledger, the ring of decisions, the access line."""

from __future__ import annotations

import io

import pytest

from router.placement import Placement
from router.scheduling.candidate import Candidate
from router.scheduling.decision import Decision, Outcome
from router.telemetry.access_log import AccessLog
from router.telemetry.decisions import DecisionLog
from router.telemetry.metrics import Metrics
from router.telemetry.recorder import Recorder, RequestFacts
from tests.telemetry.placed import SmallFleet, prompt


def candidate(unit: str, matched: int) -> Candidate:
    return Candidate(unit, unit[:2], 112, matched, expected_tokens=matched)


def decision(request_id: str = "q", *, matched: int = 48, prompt_reason: str | None = None) -> Decision:
    candidates = [candidate("r0/0", matched), candidate("r1/0", 96)]
    values = (request_id, 0.0, "tiny", "cost", 112, 1.0, candidates, {}, "r0/0", 5.0, matched, matched, "cost", "exact")
    return Decision(*values, prompt_reason=prompt_reason)


def outcome(cached: int | None, status: int | None = 200, **changes: object) -> Outcome:
    values = {"error": None, "prompt_tokens": 112, "completion_tokens": 3, "ttft_s": 0.1, "total_s": 0.2}
    return Outcome(status=status, cached_tokens=cached, **{**values, **changes})


@pytest.fixture
def log() -> io.StringIO:
    """Where access lines go."""
    return io.StringIO()


@pytest.fixture
def recorder(log: io.StringIO) -> Recorder:
    """A recorder with JSON access lines."""
    metrics = Metrics("1", ["/v1/completions"], lambda name: name == "tiny")
    return Recorder(metrics, DecisionLog(10), AccessLog(log, "json"))


def placed() -> Placement:
    """A prompt of 112 tokens, placed at r0 by load: r0 holds 48 of them, r1 has a queue and holds 96."""
    fleet, one = SmallFleet(policy="least-loaded"), prompt(112)
    fleet.holds("r0", one, 3)
    fleet.holds("r1", one, 6)
    fleet.fleet.units["r1/0"].in_flight.reserve(5_000, 0.0, observable=True, teaches=False)
    placement = fleet.place(one)
    assert placement.replica.replica_id == "r0"
    return placement


FACTS = RequestFacts("q", "POST", "/v1/completions", "tiny", stream=True)


def stage(recorder: Recorder, name: str) -> float:
    value = recorder.metrics.registry.get_sample_value("warmroute_reuse_tokens_total", {"stage": name})
    assert value is not None
    return value


def test_the_ledger_counts_available_captured_and_delivered(recorder):
    """Available is the best candidate's match (96), captured the chosen one's (48), delivered what the engine says."""
    recorder.finished(placed(), outcome(cached=32), FACTS)
    assert [stage(recorder, s) for s in ("available", "captured", "delivered", "unobserved")] == [96, 48, 32, 0]
    prompt = recorder.metrics.registry.get_sample_value("warmroute_prompt_tokens_total", {"model": "tiny"})
    assert prompt == 112


def test_what_an_engine_does_not_report_is_unobserved(recorder):
    """Without a figure from the engine, what was captured counts as unobserved, and no delivery is made up."""
    recorder.finished(placed(), outcome(cached=None, prompt_tokens=None), FACTS)
    assert [stage(recorder, s) for s in ("available", "captured", "delivered", "unobserved")] == [96, 48, 0, 48]


def test_chains_of_served_requests_are_sampled(recorder):
    """Hot prefixes are told from chains of requests that were served, not of those that failed."""
    recorder.finished(placed(), outcome(cached=None, status=503), FACTS)
    assert recorder.chains.latest() == []
    served = placed()
    chain = list(served.chain)
    assert len(chain) == 7
    recorder.finished(served, outcome(cached=32), FACTS)
    [sample] = recorder.chains.latest()
    assert (list(sample.chain), sample.block_size, sample.prompt_tokens) == (chain, 16, 112)


@pytest.mark.parametrize("status", [None, 400, 503])
def test_requests_that_were_not_served_are_not_in_the_ledger(recorder, status):
    """An error computed nothing and reused nothing."""
    recorder.finished(placed(), outcome(cached=None, status=status), FACTS)
    assert stage(recorder, "available") == 0


def test_an_exact_prediction_falls_into_its_own_bucket(recorder):
    """As predicted is between -1 and 0: neighbours of one block fall outside."""
    for cached in (48, 64, 32):
        recorder.finished(placed(), outcome(cached=cached), FACTS)
    value = recorder.metrics.registry.get_sample_value
    upto = {le: value("warmroute_prediction_difference_tokens_bucket", {"le": le}) for le in ("-1.0", "0.0", "16.0")}
    assert upto == {"-1.0": 1, "0.0": 2, "16.0": 3}


def test_a_request_ends_once_in_every_count(recorder):
    """In flight rises and falls; status class, error code and abort are counted."""
    recorder.accepted()
    value = recorder.metrics.registry.get_sample_value
    assert value("warmroute_in_flight_requests") == 1
    recorder.finished(None, outcome(None, status=503, error="no_replica_available", aborted=True), FACTS)
    assert value("warmroute_in_flight_requests") == 0
    assert value("warmroute_errors_total", {"code": "no_replica_available"}) == 1
    assert value("warmroute_client_aborts_total") == 1
    labels = {"endpoint": "/v1/completions", "model": "tiny", "status": "5xx"}
    assert value("warmroute_requests_total", labels) == 1


def test_the_ring_keeps_the_newest_decisions():
    """Beyond its capacity the oldest goes, in the list and by id; nothing is kept with capacity 0."""
    ring, none = DecisionLog(3), DecisionLog(0)
    for number in range(5):
        ring.add(decision(f"q{number}"))
        none.add(decision(f"q{number}"))
    assert [item.request_id for item in ring.latest(2)] == ["q4", "q3"]
    assert ring.get("q1") is None
    assert ring.get("q2") is not None
    assert (len(ring), len(none)) == (3, 0)


def test_a_retried_request_has_one_decision_and_a_repeated_id_two():
    """Placed again after a replica failed: the last decision holds. Another request with the same id is another one."""
    ring = DecisionLog(10)
    first, retry, other = decision("q"), decision("q"), decision("q")
    retry.retries = ["r9"]
    ring.add(first)
    ring.add(retry)
    assert ring.latest(9) == [retry]
    ring.add(other)
    assert ring.latest(9) == [other, retry]
    assert ring.get("q") is other


def test_an_error_s_first_byte_is_no_first_token(recorder: Recorder):
    """A streamed request that was refused says nothing of how soon answers come."""
    recorder.finished(None, outcome(cached=None, status=400), FACTS)
    recorder.finished(None, outcome(cached=None), FACTS)
    assert recorder.metrics.registry.get_sample_value("warmroute_ttft_seconds_count", {"model": "tiny"}) == 1


def test_a_stale_connection_is_told_apart(recorder: Recorder):
    """It is no other replica's turn, and no unknown reason."""
    recorder.retried("stale_connection")
    value = recorder.metrics.registry.get_sample_value("warmroute_retries_total", {"reason": "stale_connection"})
    assert value == 1


def test_an_old_decision_that_leaves_does_not_take_a_newer_one_with_its_id():
    """Two ended requests bore one id; when the older one falls out of the ring, the newer one is still found."""
    ring = DecisionLog(2)
    old, new = decision("q"), decision("q")
    for item in (old, new, decision("z")):
        item.outcome = outcome(cached=0)
        ring.add(item)
    assert ring.get("q") is new
