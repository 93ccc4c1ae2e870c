"""Which requests are traced, and what is noted of them on their way. `router.telemetry.span_export` makes spans of it.

W3C Trace Context: a client's trace is gone on with, and the engine is told of ours. Of a request that is not traced
here, `traceparent` passes as it came. Where nothing is traced this costs a request nothing; a traced one costs a few
clock readings on its way, and its spans when it has ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from router.config_tracing import TracingConfig
from router.errors import ConfigurationError, Problem
from router.placement import Placement
from router.scheduling.decision import Outcome

TRACEPARENT = b"traceparent"
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
"""W3C Trace Context, section 3.2.2: a later version may go on behind the flags; ff is no version."""
_SAMPLED = 1


@dataclass(slots=True, eq=False)
class Trace:
    """A traced request. Times are the monotonic clock's, in seconds.

    Attributes:
        trace_id, span_id: The request's own span, as it comes from the client.
        parent_id: The client's span; None where the trace begins here.
        forward_id: The span of the exchange with the engine, which the engine gets as its parent.
        arrived_s: The request's first byte was read.
        admitted_s: Its tenant was found; None without tenants.
        body_s: Its body was there.
        read_s: Its prompt was read, in `reading_s` of work, of which `render_s` was the chat template's.
        placed: Each placement, with the seconds that it took.
        sent_s: It was sent to the engine that answered.
        first_token_s: The answer's first byte came.
    """

    trace_id: int
    span_id: int
    parent_id: int | None
    forward_id: int
    arrived_s: float
    body_s: float
    admitted_s: float | None = None
    read_s: float | None = None
    reading_s: float = 0.0
    render_s: float = 0.0
    placed: list[tuple[Placement, float]] = field(default_factory=list)
    sent_s: float | None = None
    first_token_s: float | None = None

    @property
    def header(self) -> bytes:
        """The engine's `traceparent`."""
        return b"00-%032x-%016x-01" % (self.trace_id, self.forward_id)

    @property
    def name(self) -> str:
        """The trace's id, as people write it."""
        return f"{self.trace_id:032x}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a trace is told at its end."""

    method: str
    path: str
    request_id: str
    model: str | None
    tenant: str | None
    outcome: Outcome
    at_s: float


class Spans(Protocol):
    """Takes traces that ended."""

    def export(self, trace: Trace, ended: Ended) -> None:
        """Send its spans. Never waits, never raises."""

    def close(self) -> None:
        """Send what waits. May block."""


class Tracing:
    """Chooses requests.

    Args:
        spans: Where they go.
        clock: Of all times, in seconds.
    """

    def __init__(
        self,
        config: TracingConfig,
        spans: Spans,
        clock: Callable[[], float] = time.monotonic,
        rng: Random | None = None,
    ) -> None:
        self.config = config
        self._spans = spans
        self._clock = clock
        self._rng = rng or Random()
        self._left = config.max_per_s
        self._filled_s = clock()

    def begin(self, headers: list[tuple[bytes, bytes]], arrived_s: float, admitted_s: float | None) -> Trace | None:
        """Return a request's trace, where it is to have one. Its body is there."""
        given = next((value for name, value in headers if name.lower() == TRACEPARENT), None)
        found = None if given is None else _TRACEPARENT.match(given)
        if found is not None and int(found[3], 16) & _SAMPLED and self.config.follow_parent:
            wanted = True
        else:
            wanted = self._rng.random() < self.config.sample_share
        now_s = self._clock()
        if not wanted or not self._take(now_s):
            return None
        rng = self._rng
        trace_id = rng.getrandbits(128) | 1 if found is None else int(found[1], 16)
        parent_id = None if found is None else int(found[2], 16)
        ids = (rng.getrandbits(64) | 1, parent_id, rng.getrandbits(64) | 1)
        return Trace(trace_id, *ids, arrived_s, now_s, admitted_s)

    def end(self, trace: Trace, ended: Ended) -> None:
        """The request ended."""
        self._spans.export(trace, ended)

    def close(self) -> None:
        """Send what waits. May block: not for the loop."""
        self._spans.close()

    def _take(self, now_s: float) -> bool:
        most = self.config.max_per_s
        self._left = min(most, self._left + (now_s - self._filled_s) * most)
        self._filled_s = now_s
        if self._left < min(1.0, most):
            return False
        self._left -= 1
        return True


def tracing_of(config: TracingConfig) -> Tracing | None:
    """Return what a configuration asks for.

    Raises:
        ConfigurationError: The extra `otel` is missing.
    """
    if config.endpoint is None:
        return None
    try:
        from router.telemetry.span_export import SpanExport
    except ModuleNotFoundError as error:
        message, remedy = f"needs the package {error.name!r}", 'pip install "warmroute[otel]"'
        raise ConfigurationError([Problem("tracing.endpoint", message, remedy)]) from None
    return Tracing(config, SpanExport(config))
