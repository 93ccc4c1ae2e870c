"""Which requests are traced, and the spans of one, at an OTLP receiver over HTTP."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from router.config_tracing import TracingConfig
from router.telemetry.span_export import SpanExport
from router.telemetry.tracing import Ended, Trace, Tracing
from tests.telemetry.placed import SmallFleet, outcome, prompt

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Taken:
    """Keeps what ended, instead of sending it."""

    def export(self, trace: Trace, ended: Ended) -> None:
        """See `Spans`."""

    def close(self) -> None:
        """See `Spans`."""


def tracing(share: float = 0.0, **changes: Any) -> Tracing:
    """One whose clock stands still."""
    config = TracingConfig(endpoint="http://x/", sample_share=share, **changes)
    return Tracing(config, Taken(), lambda: 10.0, random.Random(3))


def test_a_client_s_sampled_trace_is_gone_on_with() -> None:
    """Same trace, its span for our parent; the engine is told of our span."""
    trace = tracing().begin([(b"TraceParent", PARENT)], 9.0, None)
    assert trace is not None
    assert trace.name == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace.parent_id == 0x00F067AA0BA902B7
    assert trace.header == b"00-4bf92f3577b34da6a3ce929d0e0e4736-%016x-01" % trace.forward_id
    assert len({trace.parent_id, trace.span_id, trace.forward_id}) == 3


@pytest.mark.parametrize(
    "given",
    [
        PARENT[:-1] + b"0",
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-" + b"0" * 16 + b"-01",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        b"nonsense",
        b"",
    ],
)
def test_what_is_not_sampled_or_no_trace_is_left_alone(given: bytes) -> None:
    """By W3C's rules; nothing is raised."""
    assert tracing().begin([(b"traceparent", given)], 9.0, None) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    """Fields behind the flags are for others."""
    assert tracing().begin([(b"traceparent", b"01" + PARENT[2:] + b"-more")], 9.0, None) is not None


def test_an_operator_may_not_want_clients_to_choose() -> None:
    """Then the share alone decides; the trace is the client's all the same."""
    assert tracing(follow_parent=False).begin([(b"traceparent", PARENT)], 9.0, None) is None
    trace = tracing(1.0, follow_parent=False).begin([(b"traceparent", PARENT)], 9.0, None)
    assert trace is not None
    assert trace.parent_id == 0x00F067AA0BA902B7


def test_a_share_is_sampled_and_no_more_than_the_bound() -> None:
    """A tenth of many; a bound a second for what clients ask for."""
    one = tracing(0.1, max_per_s=10_000.0)
    assert 60 < sum(one.begin([], 9.0, None) is not None for _ in range(1_000)) < 140
    bounded = tracing(max_per_s=5.0)
    assert sum(bounded.begin([(b"traceparent", PARENT)], 9.0, None) is not None for _ in range(100)) == 5


@pytest.fixture
def receiver() -> Iterator[Any]:
    """An OTLP receiver: its `url`, and the spans that came."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == "application/x-protobuf"
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                server.resources.append({item.key: item.value.string_value for item in resource.resource.attributes})
                for scope in resource.scope_spans:
                    server.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.spans, server.resources = [], []
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_spans_arrive_as_they_were(receiver: Any) -> None:
    """Every step of a request, with its times and parents; the engine's parent is the span `forward`; no text."""
    config = TracingConfig(endpoint=receiver.url, sample_share=1.0, service_name="router-of-test")
    spans = SpanExport(config)
    one = Tracing(config, spans)
    trace = one.begin([(b"traceparent", PARENT)], 100.0, 100.001)
    assert trace is not None
    trace.body_s, trace.read_s, trace.reading_s, trace.render_s = 100.002, 100.010, 0.006, 0.002
    placement = SmallFleet().place(prompt(), now_s=100.020)
    placement.decision.queued_s = 0.008
    trace.placed.append((placement, 0.001))
    trace.sent_s, trace.first_token_s = 100.022, 100.122
    one.end(trace, Ended("POST", "/v1/chat/completions", "q-1", "tiny", "acme", outcome(96, 161), 100.322))
    one.close()
    by_name = {span.name: span for span in receiver.spans}
    assert set(by_name) == {
        "POST /v1/chat/completions",
        *("authenticate", "receive", "render", "tokenise", "wait", "place", "forward", "first token", "stream"),
    }
    root, forward = by_name["POST /v1/chat/completions"], by_name["forward"]
    assert {span.trace_id.hex() for span in receiver.spans} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert forward.span_id.hex() == f"{trace.forward_id:016x}"
    below = {"first token": forward, "stream": forward}
    for name, span in by_name.items():
        if span is not root:
            assert span.parent_span_id == below.get(name, root).span_id, name

    def milliseconds(name: str) -> tuple[float, float]:
        span = by_name[name]
        begun, ended = (round((at - root.start_time_unix_nano) / 1e6, 3) for at in _times(span))
        return begun, ended

    assert {name: milliseconds(name) for name in by_name} == {
        "POST /v1/chat/completions": (0, 322),
        "authenticate": (0, 1),
        "receive": (1, 2),
        "render": (4, 6),
        "tokenise": (6, 10),
        "wait": (12, 20),
        "place": (20, 21),
        "forward": (22, 322),
        "first token": (22, 122),
        "stream": (122, 322),
    }
    told = {item.key: item.value for item in root.attributes}
    assert told["gen_ai.usage.cache_read.input_tokens"].int_value == 96
    assert told["warmroute.tenant"].string_value == "acme"
    assert receiver.resources[0]["service.name"] == "router-of-test"


def _times(span: Any) -> tuple[int, int]:
    return span.start_time_unix_nano, span.end_time_unix_nano
