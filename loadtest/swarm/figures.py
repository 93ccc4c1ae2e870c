"""What a run of locust tells: rows of its statistics, the hit rate, whether generators kept up, and a report."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from loadtest.driver.generator import Generator, Ticks, judge
from loadtest.driver.records import Record
from loadtest.report.percentiles import quantile
from loadtest.reuse import ReuseTotals

Fire = Callable[..., None]


class Figures:
    """Those of one process, until they are taken by the master's; or the master's.

    Attributes:
        totals: Of prompt and cached tokens.
        records: Of all requests, where they are kept.
    """

    def __init__(self, keep_records: bool) -> None:
        self.totals = ReuseTotals()
        self.records: list[Record] = []
        self._keep = keep_records
        self._late_s = array("d")
        self._ttfts_s = array("d")
        self._lags_s = array("d")
        self._cpu_share = 0.0

    def add(self, record: Record) -> None:
        """Count one request."""
        self._late_s.append(record.late_s)
        if record.ttft_s is not None:
            self._ttfts_s.append(record.ttft_s)
        if record.cause is None:
            self.totals.add(record.prompt_tokens, record.cached_tokens)
        if self._keep:
            self.records.append(record)

    def take(self, ticks: Ticks) -> dict[str, Any]:
        """Return what is new as plain values, and begin anew: what a worker reports to its master."""
        lags = array("d", ticks.lags_s)
        ticks.lags_s.clear()
        told = {
            "reuse": self.totals.take(),
            "records": [record.pack() for record in self.records],
            "cpu": ticks.cpu_share(),
            **{name: values.tobytes() for name, values in self._arrays(lags).items()},
        }
        self.records.clear()
        self._late_s, self._ttfts_s = array("d"), array("d")
        return told

    def merge(self, told: dict[str, Any]) -> None:
        """Add what `take` returned elsewhere."""
        self.totals.merge(told["reuse"])
        self.records.extend(map(Record.unpack, told["records"]))
        for name, values in self._arrays(self._lags_s).items():
            values.frombytes(told[name])
        self._cpu_share = max(self._cpu_share, told["cpu"])

    def note(self, ticks: Ticks) -> None:
        """Take the ticks of a process that sends itself and gathers its own figures."""
        self._lags_s.extend(ticks.lags_s)
        self._cpu_share = ticks.cpu_share()

    def generator(self) -> Generator:
        """Judge all workers' event loops and sends together; the CPU share is the busiest worker's."""
        median_s = quantile(self._ttfts_s, 0.5) if self._ttfts_s else None
        return judge(self._late_s, self._lags_s, median_s, self._cpu_share)

    def _arrays(self, lags_s: array[float]) -> dict[str, array[float]]:
        return {"late": self._late_s, "ttfts": self._ttfts_s, "lags": lags_s}


def fire_rows(fire: Fire, record: Record) -> None:
    """Tell locust of one request: its own row, and rows for what users feel. Failures have the first alone."""

    def row(kind: str, name: str, value: float, length: int = 0, exception: Exception | None = None) -> None:
        fire(
            request_type=kind,
            name=name,
            response_time=value,
            response_length=length,
            exception=exception,
            context={},
        )

    kind = str(record.kind)
    if record.cause is not None:
        row("POST", kind, record.total_s * 1000, exception=FailedRequestError(record.cause))
        return
    row("POST", kind, record.total_s * 1000, record.output_tokens or 0)
    if record.ttft_s is not None:
        row("TTFT", kind, record.ttft_s * 1000)
    if record.gaps_s:
        row("ITL", kind, sum(record.gaps_s) / len(record.gaps_s) * 1000)
    for title, tokens in (("HIT%", record.cached_tokens), ("MATCH%", record.matched_tokens)):
        if record.prompt_tokens and tokens is not None:
            row(title, kind, 100 * tokens / record.prompt_tokens)
    if record.replica:
        row("REPLICA", record.replica, record.total_s * 1000)
    if record.tenant is not None:
        row("TENANT", str(record.tenant), record.total_s * 1000)


class FailedRequestError(Exception):
    """A request failed; the message is its cause, so that locust counts failures by cause."""
