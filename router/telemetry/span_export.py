"""A traced request as OpenTelemetry spans, sent by the SDK's own batches over OTLP. Needs the extra `otel`.

    POST /v1/chat/completions            the request, of kind server
      authenticate                       whose key it is (with tenants)
      receive                            its body
      render, tokenise                   the chat template; all else of reading the prompt
      wait                               in the queue for a replica with room
      place                              once for each replica that was tried
      forward                            the exchange with the engine, of kind client; the engine's own spans go below
        first token                      to the answer's first byte
        stream                           from there to its end

No span holds text, token ids, keys or headers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from router.config_tracing import TracingConfig
from router.telemetry.tracing import Ended, Trace

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanExport:
    """Makes spans and hands them to the SDK, which sends them from a thread of its own and drops what is too much.

    Args:
        exporter: Where to, instead of `config.endpoint`.
    """

    def __init__(self, config: TracingConfig, exporter: SpanExporter | None = None) -> None:
        self._ids = _GivenIds()
        resource = Resource.create({"service.name": config.service_name, "service.version": version("warmroute")})
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        processor = BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=config.endpoint))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("warmroute", version("warmroute"))

    def export(self, trace: Trace, ended: Ended) -> None:
        """Send a trace's spans. Called on one thread."""
        self._ahead_ns = time.time_ns() - int(time.monotonic() * 1e9)
        root = self._span(
            f"{ended.method} {ended.path}",
            trace,
            trace.parent_id,
            trace.span_id,
            (trace.arrived_s, ended.at_s),
            _of_request(trace, ended),
            SpanKind.SERVER,
            _status(ended),
        )
        for name, begin_s, end_s, attributes in _steps(trace, ended):
            self._span(name, trace, root, None, (begin_s, end_s), attributes)
        if trace.sent_s is not None:
            last = trace.placed[-1][0] if trace.placed else None
            attributes = {} if last is None else {"warmroute.replica": last.replica.replica_id}
            times = (trace.sent_s, ended.at_s)
            forward = self._span(
                "forward", trace, root, trace.forward_id, times, attributes, SpanKind.CLIENT, _status(ended)
            )
            if trace.first_token_s is not None:
                self._span("first token", trace, forward, None, (trace.sent_s, trace.first_token_s))
                self._span("stream", trace, forward, None, (trace.first_token_s, ended.at_s))

    def close(self) -> None:
        """Send what waits. May block for some seconds."""
        self._provider.shutdown()

    def _span(
        self,
        name: str,
        trace: Trace,
        parent_id: int | None,
        span_id: int | None,
        times: tuple[float, float],
        attributes: Attributes | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status | None = None,
    ) -> int:
        self._ids.trace_id, self._ids.span_id = trace.trace_id, span_id
        context = None
        if parent_id is not None:
            is_remote = parent_id == trace.parent_id
            parent = SpanContext(trace.trace_id, parent_id, is_remote=is_remote, trace_flags=_SAMPLED)
            context = otel.set_span_in_context(NonRecordingSpan(parent))
        span = self._tracer.start_span(name, context or Context(), kind, attributes, start_time=self._unix_ns(times[0]))
        if status is not None:
            span.set_status(status)
        span.end(self._unix_ns(max(times)))
        return span.get_span_context().span_id

    def _unix_ns(self, at_s: float) -> int:
        return int(at_s * 1e9) + self._ahead_ns


class _GivenIds(RandomIdGenerator):
    """Gives spans the ids that were told to the engine already."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id: int | None = None

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        given, self.span_id = self.span_id, None
        return super().generate_span_id() if given is None else given


def _of_request(trace: Trace, ended: Ended) -> Attributes:
    outcome = ended.outcome
    known: dict[str, str | int | float | None] = {
        "http.request.method": ended.method,
        "url.path": ended.path,
        "http.response.status_code": outcome.status,
        "error.type": outcome.error,
        "gen_ai.request.model": ended.model,
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.output_tokens": outcome.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.cached_tokens,
        "warmroute.request_id": ended.request_id,
        "warmroute.tenant": ended.tenant,
    }
    if trace.placed:
        decision = trace.placed[-1][0].decision
        known |= {
            "warmroute.unit": decision.winner,
            "warmroute.policy": decision.policy,
            "warmroute.reason": decision.reason,
            "warmroute.matched_tokens": decision.matched_tokens,
            "warmroute.not_understood": decision.prompt_reason,
        }
    return {name: value for name, value in known.items() if value is not None}


def _steps(trace: Trace, ended: Ended) -> list[tuple[str, float, float, Attributes]]:
    """Return the spans between the request's arrival and its sending."""
    steps: list[tuple[str, float, float, Attributes]] = []
    received_s = trace.arrived_s
    if trace.admitted_s is not None:
        steps.append(("authenticate", trace.arrived_s, trace.admitted_s, {}))
        received_s = trace.admitted_s
    steps.append(("receive", received_s, trace.body_s, {}))
    if trace.read_s is not None:
        begun_s = trace.read_s - trace.reading_s
        rendered_s = begun_s + min(trace.render_s, trace.reading_s)
        if trace.render_s:
            steps.append(("render", begun_s, rendered_s, {}))
        steps.append(("tokenise", rendered_s, trace.read_s, {}))
    for placement, took_s in trace.placed:
        decision = placement.decision
        queued_s = decision.queued_s if placement is trace.placed[-1][0] else 0.0
        if queued_s:
            steps.append(("wait", placement.placed_s - queued_s, placement.placed_s, {}))
        told: Attributes = {
            "warmroute.unit": decision.winner,
            "warmroute.reason": decision.reason,
            "warmroute.matched_tokens": decision.matched_tokens,
            "warmroute.candidates": len(decision.candidates),
        }
        steps.append(("place", placement.placed_s, placement.placed_s + took_s, told))
    return steps


def _status(ended: Ended) -> Status | None:
    outcome = ended.outcome
    if outcome.error is not None:
        return Status(StatusCode.ERROR, outcome.error)
    return Status(StatusCode.ERROR) if outcome.status is not None and outcome.status >= 500 else None
