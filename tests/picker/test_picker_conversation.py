"""The protocol without I/O: what is answered to what a gateway tells, in every body mode, however the body is cut."""

from __future__ import annotations

import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BodyTooLargeError
from router.picker.conversation import Conversation, Stage
from router.picker.messages import ENDPOINT_KEY, MAX_CHUNK_BYTES, Choice

Mode = ProcessingMode.BodySendMode
CHOICE = Choice(["10.0.0.1:8000", "10.0.0.2:8000"], rank=3)


def head(mode: int = Mode.FULL_DUPLEX_STREAMED, ends: bool = False, **pairs: str) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest()
    message.protocol_config.request_body_mode = mode
    message.request_headers.end_of_stream = ends
    for key, value in {":method": "POST", ":path": "/v1/completions?a=b", **pairs}.items():
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return message


def part(data: bytes, ends: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=ends))


def told(reply: pb.ProcessingResponse) -> dict[str, str]:
    """The headers that a reply sets."""
    kind = reply.WhichOneof("response")
    mutation = getattr(reply, str(kind)).response.header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def given_back(replies: list[pb.ProcessingResponse]) -> tuple[bytes, list[bool]]:
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
    end = pb.ProcessingRequest(request_trailers=pb.HttpTrailers()) if by_trailers else part(b"", ends=True)
    assert conversation.feed(end) == []
    assert conversation.stage is Stage.ASKED
    assert bytes(conversation.body) == b"".join(parts)
    first, *rest = conversation.picked(CHOICE)
    assert told(first) == {ENDPOINT_KEY: "10.0.0.1:8000,10.0.0.2:8000", "x-data-parallel-rank": "3"}
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
    (reply,) = conversation.feed(head(mode))
    assert told(reply) == {}
    assert conversation.feed(part(b"{}", ends=mode == Mode.BUFFERED)) == []
    assert conversation.stage is Stage.ASKED
    (reply,) = conversation.picked(CHOICE)
    assert reply.WhichOneof("response") == "request_body"
    assert told(reply)[ENDPOINT_KEY] == "10.0.0.1:8000,10.0.0.2:8000"


@pytest.mark.parametrize(
    "first", [head(ends=True), head(Mode.NONE), head(Mode.STREAMED)], ids=["no body", "NONE", "STREAMED"]
)
def test_head_alone_asks(first: pb.ProcessingRequest) -> None:
    """Where no body will be seen in time, the head is answered."""
    conversation = Conversation(100)
    assert conversation.feed(first) == []
    assert conversation.stage is Stage.ASKED
    (reply,) = conversation.picked(CHOICE)
    assert told(reply)[ENDPOINT_KEY]


def test_a_clients_rank_does_not_pass() -> None:
    """Where the replica has one rank, the header is removed: it names what nobody counted."""
    conversation = Conversation(100)
    conversation.feed(head(ends=True, **{"x-data-parallel-rank": "7"}))
    (reply,) = conversation.picked(Choice(["10.0.0.1:8000"]))
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
    message = head(ends=True)
    if value is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": value})
    conversation = Conversation(100)
    conversation.feed(message)
    assert conversation.head is not None
    assert conversation.head.subset == expected


@given(st.binary(max_size=300))
def test_no_message_breaks_it(data: bytes) -> None:
    """Whatever parses as the protocol's message is answered, or asks, or is too large."""
    message = pb.ProcessingRequest()
    try:
        message.ParseFromString(data)
    except Exception:
        return
    conversation = Conversation(50)
    try:
        conversation.feed(head())
        conversation.feed(message)
    except BodyTooLargeError:
        pass
