"""The protocol without I/O: what is answered to what a gateway tells, in every body mode, however the body is cut."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BodyTooLargeError
from router.picker import messages, protobuf, told
from router.picker.conversation import Conversation, Stage, status_of
from router.picker.messages import MAX_CHUNK_BYTES, Choice
from router.picker.service import Processing
from router.picker.told import BodyMode as Mode
from router.picker.told import Part, Told
from tests.picker.protocol import HttpBody, HttpTrailers, ProcessingRequest, ProcessingResponse

ENDPOINT_KEY = messages.ENDPOINT_KEY.decode()
CHOICE = Choice(["10.0.0.1:8000", "10.0.0.2:8000"], rank=3)


def head(mode: int = Mode.FULL_DUPLEX_STREAMED, ends: bool = False, **pairs: str) -> Told:
    return told.read(head_message(mode, ends, **pairs).SerializeToString())


def head_message(mode: int = Mode.FULL_DUPLEX_STREAMED, ends: bool = False, **pairs: str) -> Any:
    message = ProcessingRequest()
    message.protocol_config.request_body_mode = mode
    message.request_headers.end_of_stream = ends
    for key, value in {":method": "POST", ":path": "/v1/completions?a=b", **pairs}.items():
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return message


def part(data: bytes, ends: bool = False) -> Told:
    return told.read(ProcessingRequest(request_body=HttpBody(body=data, end_of_stream=ends)).SerializeToString())


def replies_of(answers: list[bytes]) -> list[Any]:
    """Answers as Google's runtime reads them; nothing in them may be unknown to it."""
    replies = [ProcessingResponse.FromString(answer) for answer in answers]
    assert [reply.SerializeToString(deterministic=True) for reply in replies] == answers
    return replies


def set_by(reply: Any) -> dict[str, str]:
    """The headers that a reply sets."""
    kind = reply.WhichOneof("response")
    mutation = getattr(reply, str(kind)).response.header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def given_back(replies: list[Any]) -> tuple[bytes, list[bool]]:
    """The body in streamed replies, and which of them end it."""
    pieces = [
        reply.request_body.response.body_mutation.streamed_response
        for reply in replies
        if reply.WhichOneof("response") == "request_body"
    ]
    assert all(len(piece.body) <= MAX_CHUNK_BYTES for piece in pieces)
    return b"".join(piece.body for piece in pieces), [piece.end_of_stream for piece in pieces]


@given(st.lists(st.binary(max_size=200_000), max_size=5), st.booleans())
def test_duplex_body_comes_back(parts: list[bytes], by_trailers: bool) -> None:
    """Nothing is answered before the end; then the endpoint, then the same bytes, and their end."""
    conversation = Conversation(10**7)
    assert conversation.feed(head()) == []
    for data in parts:
        assert conversation.feed(part(data)) == []
    trailers = ProcessingRequest(request_trailers=HttpTrailers())
    end = told.read(trailers.SerializeToString()) if by_trailers else part(b"", ends=True)
    assert conversation.feed(end) == []
    assert conversation.stage is Stage.ASKED
    assert bytes(conversation.body) == b"".join(parts)
    first, *rest = replies_of(conversation.picked(CHOICE))
    assert set_by(first) == {ENDPOINT_KEY: "10.0.0.1:8000,10.0.0.2:8000", "x-data-parallel-rank": "3"}
    assert first.dynamic_metadata["envoy.lb"][ENDPOINT_KEY] == "10.0.0.1:8000,10.0.0.2:8000"
    assert first.request_headers.response.clear_route_cache
    body, ends = given_back(rest)
    assert body == b"".join(parts)
    assert ends == [False] * (len(ends) - 1) + [not by_trailers]
    assert (rest[-1].WhichOneof("response") == "request_trailers") is by_trailers
    assert not conversation.body, "it is not kept for the answer's time"


@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.BUFFERED_PARTIAL])
def test_buffered_body_gets_its_endpoint(mode: int) -> None:
    """The head goes on at once, with nothing changed; the endpoint is told with the body."""
    conversation = Conversation(100)
    (reply,) = replies_of(conversation.feed(head(mode)))
    assert set_by(reply) == {}
    assert conversation.feed(part(b"{}", ends=mode == Mode.BUFFERED)) == []
    assert conversation.stage is Stage.ASKED
    (reply,) = replies_of(conversation.picked(CHOICE))
    assert reply.WhichOneof("response") == "request_body"
    assert set_by(reply)[ENDPOINT_KEY] == "10.0.0.1:8000,10.0.0.2:8000"


@pytest.mark.parametrize(
    "first", [head(ends=True), head(Mode.NONE), head(Mode.STREAMED)], ids=["no body", "NONE", "STREAMED"]
)
def test_head_alone_asks(first: Told) -> None:
    """Where no body will be seen in time, the head is answered."""
    conversation = Conversation(100)
    assert conversation.feed(first) == []
    assert conversation.stage is Stage.ASKED
    (reply,) = replies_of(conversation.picked(CHOICE))
    assert set_by(reply)[ENDPOINT_KEY]


def test_a_clients_rank_does_not_pass() -> None:
    """Where the replica has one rank, the header is removed: it names what nobody counted."""
    conversation = Conversation(100)
    conversation.feed(head(ends=True, **{"x-data-parallel-rank": "7"}))
    (reply,) = replies_of(conversation.picked(Choice(["10.0.0.1:8000"])))
    assert list(reply.request_headers.response.header_mutation.remove_headers) == ["x-data-parallel-rank"]


def test_body_has_its_limit() -> None:
    """What is over it is not kept."""
    conversation = Conversation(10)
    conversation.feed(head())
    conversation.feed(part(b"x" * 10))
    with pytest.raises(BodyTooLargeError, match=r"over 10 bytes \(limits\.body_bytes\)"):
        conversation.feed(part(b"x"))
    assert len(conversation.body) == 10


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["10.0.0.1:8000", " 10.0.0.2:8000 "], {"10.0.0.1:8000", "10.0.0.2:8000"}),
        ("10.0.0.1:8000, 10.0.0.2:8000", {"10.0.0.1:8000", "10.0.0.2:8000"}),
        ([], set()),
        (None, None),
    ],
)
def test_subset_hint(value: object, expected: set[str] | None) -> None:
    """As a list or as text; one that is empty allows nobody, none allows all."""
    message = head_message(ends=True)
    if value is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": value})
    conversation = Conversation(100)
    conversation.feed(told.read(message.SerializeToString()))
    assert conversation.head is not None
    assert conversation.head.subset == expected


@given(st.binary(max_size=300))
def test_no_message_breaks_it(data: bytes) -> None:
    """Whatever comes is answered, or asks, or is too large, or is no message."""
    conversation = Conversation(50)
    conversation.feed(head())
    with contextlib.suppress(BodyTooLargeError, protobuf.MalformedError):
        conversation.feed(told.read(data))


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)


@given(
    st.lists(st.tuples(TEXT, st.binary(max_size=300), st.booleans()), max_size=8),
    st.binary(max_size=70_000),
    st.booleans(),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_messages_are_read_as_google_writes_them(
    headers: list[tuple[str, bytes, bool]], body: bytes, ends: bool, mode: int, response_mode: int
) -> None:
    """Heads of request and answer, bodies and modes, whatever stands beside them that is not known here."""
    message = ProcessingRequest(observability_mode=True)
    message.attributes["envoy.filters.http.ext_proc"].update({"request.id": "x", "number": 3.5})
    message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = mode, response_mode
    message.response_headers.end_of_stream = ends
    expected = []
    for key, value, as_text in headers:
        header = message.response_headers.headers.headers.add(key=key)
        if as_text:
            header.value = value.decode("utf-8", "replace")
        else:
            header.raw_value = value
        expected.append((key.encode().lower(), header.value.encode() if as_text else value))
    found = told.read(message.SerializeToString())
    assert (found.part, found.headers, found.ends) == (Part.RESPONSE_HEADERS, expected, ends)
    assert found.modes == (mode, response_mode)
    message.response_body.body, message.response_body.end_of_stream = body, ends
    found = told.read(message.SerializeToString())
    assert (found.part, found.body, found.ends) == (Part.RESPONSE_BODY, body, ends)


def test_answers_are_what_google_reads() -> None:
    """Each of the other answers, whole."""
    headers, body, duplex, last = replies_of(
        [
            messages.response_headers_go_on([(b"x-a", b"1"), (b"x-long", b"v" * 300)]),
            messages.response_body_goes_on(b"", False, is_duplex=False),
            messages.response_body_goes_on(b"data", True, is_duplex=True),
            messages.answer(429, [(b"retry-after", b"1")], b"{}" * 100, "replicas_full"),
        ]
    )
    assert set_by(headers) == {"x-a": "1", "x-long": "v" * 300}
    assert body.WhichOneof("response") == "response_body"
    streamed = duplex.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"data", True)
    immediate = last.immediate_response
    assert (immediate.status.code, immediate.body, immediate.details) == (429, b"{}" * 100, "replicas_full")
    assert immediate.headers.set_headers[0].header.raw_value == b"1"


def test_status_of_an_answer() -> None:
    """It is among the headers, or is not known."""
    assert status_of(Told(Part.RESPONSE_HEADERS, [(b":status", b"200")])) == 200
    assert status_of(Told(Part.RESPONSE_HEADERS, [(b":status", b"2x")])) is None


def test_an_internal_error_ends_its_own_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets a 500 with an id, the log the reason; the connection, and so other requests, goes on."""
    sent: list[bytes] = []
    ends: list[str] = []
    call: Any = SimpleNamespace(send=sent.append, finish=lambda *_: ends.append("finished"))

    def read(*_: Any) -> None:
        raise RuntimeError("as the test wants it")

    refused: list[Any] = []
    service: Any = SimpleNamespace(
        limit_bytes=100,
        read=read,
        request=lambda *_: SimpleNamespace(request_id="r-1"),
        refused=lambda _, status, code: refused.append((status, code)),
    )
    Processing(service, call).message(head_message(ends=True).SerializeToString())
    (reply,) = replies_of(sent)
    assert reply.immediate_response.status.code == 500
    assert ends == ["finished"]
    assert [status for status, _ in refused] == [500]
    assert "as the test wants it" in caplog.text
