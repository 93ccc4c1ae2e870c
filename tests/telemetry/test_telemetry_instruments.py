"""Instruments expose what prometheus-client's own would."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from router.telemetry.instruments import Instruments
from router.telemetry.table import MetricSpec

ROWS = (
    MetricSpec("x_requests_total", "counter", ("model", "status"), "Requests."),
    MetricSpec("x_in_flight", "gauge", (), "In flight."),
    MetricSpec("x_seconds", "histogram", ("model",), "Seconds.", (0.1, 0.5, 1.0)),
)


def test_the_exposition_is_the_librarys() -> None:
    """The same counts give the same bytes, values on a bucket's bound and unlabelled series at zero among them."""
    disable_created_metrics()
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    counter = Counter("x_requests_total", "Requests.", ("model", "status"), registry=theirs)
    gauge = Gauge("x_in_flight", "In flight.", (), registry=theirs)
    histogram = Histogram("x_seconds", "Seconds.", ("model",), registry=theirs, buckets=(0.1, 0.5, 1.0))
    instruments = Instruments(ROWS)
    ours.register(instruments)
    assert generate_latest(ours) == generate_latest(theirs)
    rng = random.Random(1)
    for _ in range(300):
        model, seconds = rng.choice(["a", 'b"\n\\']), rng.choice([0.05, 0.1, 0.3, 0.5, 1.0, 7.25])
        counter.labels(model, "2xx").inc()
        instruments.count("x_requests_total", model, "2xx").value += 1
        histogram.labels(model).observe(seconds)
        instruments.distribution("x_seconds", model).observe(seconds)
        gauge.inc()
        instruments.count("x_in_flight").value += 1
    assert generate_latest(ours) == generate_latest(theirs)


def test_labels_that_do_not_fit_the_table_are_a_fault() -> None:
    """A series that the table does not describe can't be made."""
    with pytest.raises(ValueError, match="x_requests_total"):
        Instruments(ROWS).count("x_requests_total", "a")
