"""What a picker answers in ext_proc (Envoy's ProcessingResponse): which endpoint, the body again, or its own answer.

The words are those of the Gateway API Inference Extension's endpoint picker protocol: the endpoint is told twice, in a
header and in metadata, as ADDRESS:PORT, and after it come those to fall back on. Every answer is encoded already; the
numbers are those of envoy/service/ext_proc/v3/external_processor.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from router.picker.protobuf import field, number_field

ENDPOINT_KEY = b"x-gateway-destination-endpoint"
"""Name of the header, and of the key in the metadata."""
METADATA_NAMESPACE = b"envoy.lb"
RANK_HEADER = b"x-data-parallel-rank"
MAX_CHUNK_BYTES = 62_000
"""Envoy takes no more than 64 KiB of a streamed body in one message."""

Pairs = Sequence[tuple[bytes, bytes]]

# ProcessingResponse
_REQUEST_HEADERS, _RESPONSE_HEADERS, _REQUEST_BODY, _RESPONSE_BODY, _REQUEST_TRAILERS, _RESPONSE_TRAILERS = range(1, 7)
_IMMEDIATE, _METADATA = 7, 8
_OVERWRITE = number_field(3, 2)
"""HeaderValueOption: append_action = OVERWRITE_IF_EXISTS_OR_ADD."""
_CLEAR_ROUTE_CACHE = number_field(5, 1)

HEADERS_GO_ON = field(_REQUEST_HEADERS, b"")
"""The request's headers go on, and no endpoint is known yet."""
BODY_GOES_ON = field(_REQUEST_BODY, b"")
"""A part of the request's body goes on as it is."""
REQUEST_TRAILERS_GO_ON = field(_REQUEST_TRAILERS, b"")
RESPONSE_TRAILERS_GO_ON = field(_RESPONSE_TRAILERS, b"")


def _mutation(pairs: Pairs, removed: Sequence[bytes] = ()) -> bytes:
    """Encode a HeaderMutation."""
    options = [field(1, field(1, field(1, name) + field(3, value)) + _OVERWRITE) for name, value in pairs]
    return b"".join(options) + b"".join([field(2, name) for name in removed])


@dataclass(frozen=True, slots=True)
class Choice:
    """What the gateway is told.

    Attributes:
        endpoints: ADDRESS:PORT, the chosen one first, then those to fall back on.
        rank: The data-parallel rank of the engine there; None: it has one alone.
    """

    endpoints: Sequence[str]
    rank: int | None = None


def _chosen(kind: int, choice: Choice) -> bytes:
    told = ",".join(choice.endpoints).encode("ascii")
    pairs = [(ENDPOINT_KEY, told)]
    # A client's own rank never passes: it would take the request to where nothing was counted.
    removed = [RANK_HEADER] if choice.rank is None else []
    if choice.rank is not None:
        pairs.append((RANK_HEADER, b"%d" % choice.rank))
    common = field(2, _mutation(pairs, removed)) + _CLEAR_ROUTE_CACHE
    # Struct: fields = {envoy.lb: {ENDPOINT_KEY: told}}
    struct = field(1, field(1, ENDPOINT_KEY) + field(2, field(3, told)))
    metadata = field(1, field(1, METADATA_NAMESPACE) + field(2, field(5, struct)))
    return field(kind, field(1, common)) + field(_METADATA, metadata)


def endpoint_in_headers(choice: Choice) -> bytes:
    """The request's headers go on, to one of these endpoints."""
    return _chosen(_REQUEST_HEADERS, choice)


def endpoint_in_body(choice: Choice) -> bytes:
    """The request's buffered body goes on as it is, to one of these endpoints."""
    return _chosen(_REQUEST_BODY, choice)


def body_again(body: bytes | bytearray, *, ends: bool) -> Iterator[bytes]:
    """The body of a duplex request: Envoy has given it away, and takes it back in pieces.

    Args:
        ends: With its last piece; else trailers follow.
    """
    view = memoryview(body)
    for start in range(0, max(len(body), 1), MAX_CHUNK_BYTES):
        is_last = start + MAX_CHUNK_BYTES >= len(body)
        yield _streamed(_REQUEST_BODY, bytes(view[start : start + MAX_CHUNK_BYTES]), ends and is_last)


def _streamed(kind: int, piece: bytes, ends: bool) -> bytes:
    streamed = (field(1, piece) if piece else b"") + (number_field(2, 1) if ends else b"")
    return field(kind, field(1, field(3, field(3, streamed))))


def response_headers_go_on(added: Pairs) -> bytes:
    """The answer's headers go on, with these beside them."""
    return field(_RESPONSE_HEADERS, field(1, field(2, _mutation(added))))


def response_body_goes_on(piece: bytes, ends: bool, *, is_duplex: bool) -> bytes:
    """A part of the answer's body goes on as it is."""
    return _streamed(_RESPONSE_BODY, piece, ends) if is_duplex else field(_RESPONSE_BODY, b"")


def answer(status: int, headers: Pairs, body: bytes, code: str) -> bytes:
    """No endpoint: the client gets this.

    Args:
        status: HTTP status.
        code: Our error code, for the gateway's access log.
    """
    told = field(1, number_field(1, status)) + field(2, _mutation(headers)) + field(3, body)
    return field(_IMMEDIATE, told + field(5, code.encode("ascii")))
