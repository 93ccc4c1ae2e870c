"""Metrics of several processes are those of one that did all of it."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric

from router.telemetry.metrics import Metrics
from router.workers.merging import added, exposed, merged, parse


def counts(requests: int, in_flight: int, *, up: bool) -> Metrics:
    """What a worker counted."""
    metrics = Metrics("1", ["/v1/completions"], lambda name: name == "tiny")
    for number in range(requests):
        metrics.request_accepted()
        metrics.request_ended("/v1/completions", "tiny", 200, 0.02 * (number + 1))
    for _ in range(in_flight):
        metrics.request_accepted()
    metrics.feed_changed("redis", up=up)
    return metrics


def samples(families: list[Metric]) -> dict[str, float]:
    """Values by the line that exposes them."""
    rows = [line.rpartition(" ") for line in exposed(families).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def test_counters_histograms_and_gauges_come_together_as_they_should() -> None:
    """As if one process had counted; a feed is up when it is at every worker."""
    one, two = counts(3, 2, up=True), counts(4, 1, up=False)
    both = merged(Metrics().counted(), [parse(each.render().decode()) for each in (one, two)])
    found = samples(both)
    whole = counts(0, 3, up=False)
    for number in (0, 1, 2, 0, 1, 2, 3):
        whole.request_accepted()
        whole.request_ended("/v1/completions", "tiny", 200, 0.02 * (number + 1))
    wanted = samples(parse(whole.render().decode()))
    assert {
        name: round(value, 9) for name, value in found.items() if "worker" not in name and "config" not in name
    } == {name: round(value, 9) for name, value in wanted.items() if "worker" not in name and "config" not in name}


def test_the_dead_keep_their_counts_and_leave_no_gauges() -> None:
    """What was counted stays; what ran there runs no more."""
    left = added([], parse(counts(3, 2, up=True).render().decode()))
    left = added(left, parse(counts(1, 0, up=True).render().decode()))
    found = samples(merged([], [left, parse(counts(2, 1, up=True).render().decode())]))
    assert found['warmroute_requests_total{endpoint="/v1/completions",model="tiny",status="2xx"}'] == 6
    assert found['warmroute_request_seconds_count{model="tiny"}'] == 6
    assert found["warmroute_in_flight_requests"] == 1


def test_the_supervisor_alone_tells_of_workers_and_the_configuration() -> None:
    """Each worker reads it too, and is no news."""
    own = Metrics()
    own.config_loaded("abc", 1.0)
    own.config_reloaded("applied")
    worker = counts(0, 0, up=True)
    worker.config_reloaded("applied")
    found = samples(merged(own.counted(), [worker.counted(), worker.counted()]))
    assert found['warmroute_config_reloads_total{result="applied"}'] == 1
    assert found['warmroute_config_info{digest="abc"}'] == 1
