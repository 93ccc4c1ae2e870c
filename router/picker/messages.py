"""What a picker answers in ext_proc: which endpoint, the body again, or an answer of its own.

The words are those of the Gateway API Inference Extension's endpoint picker protocol: the endpoint is told twice, in a
header and in metadata, as ADDRESS:PORT, and after it come those to fall back on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.struct_pb2 import Struct

ENDPOINT_KEY = "x-gateway-destination-endpoint"
"""Name of the header, and of the key in the metadata."""
METADATA_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
RANK_HEADER = "x-data-parallel-rank"
MAX_CHUNK_BYTES = 62_000
"""Envoy takes no more than 64 KiB of a streamed body in one message."""

Pairs = Sequence[tuple[str, bytes]]


def _mutation(pairs: Pairs, removed: Sequence[str] = ()) -> pb.HeaderMutation:
    options = [
        HeaderValueOption(
            header=HeaderValue(key=name, raw_value=value),
            append_action=HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for name, value in pairs
    ]
    return pb.HeaderMutation(set_headers=options, remove_headers=removed)


def _metadata(endpoints: str) -> Struct:
    found = Struct()
    found.update({METADATA_NAMESPACE: {ENDPOINT_KEY: endpoints}})
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """What the gateway is told.

    Attributes:
        endpoints: ADDRESS:PORT, the chosen one first, then those to fall back on.
        rank: The data-parallel rank of the engine there; None: it has one alone.
    """

    endpoints: Sequence[str]
    rank: int | None = None


def _chosen(choice: Choice) -> tuple[pb.CommonResponse, Struct]:
    told = ",".join(choice.endpoints)
    pairs = [(ENDPOINT_KEY, told.encode("ascii"))]
    # A client's own rank never passes: it would take the request to where nothing was counted.
    removed = [RANK_HEADER] if choice.rank is None else []
    if choice.rank is not None:
        pairs.append((RANK_HEADER, b"%d" % choice.rank))
    return pb.CommonResponse(header_mutation=_mutation(pairs, removed), clear_route_cache=True), _metadata(told)


def endpoint_in_headers(choice: Choice) -> pb.ProcessingResponse:
    """The request's headers go on, to one of these endpoints."""
    common, metadata = _chosen(choice)
    return pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common), dynamic_metadata=metadata)


def endpoint_in_body(choice: Choice) -> pb.ProcessingResponse:
    """The request's buffered body goes on as it is, to one of these endpoints."""
    common, metadata = _chosen(choice)
    return pb.ProcessingResponse(request_body=pb.BodyResponse(response=common), dynamic_metadata=metadata)


def headers_go_on() -> pb.ProcessingResponse:
    """The request's headers go on, and no endpoint is known yet."""
    return pb.ProcessingResponse(request_headers=pb.HeadersResponse())


def body_goes_on() -> pb.ProcessingResponse:
    """A part of the request's body goes on as it is."""
    return pb.ProcessingResponse(request_body=pb.BodyResponse())


def body_again(body: bytes) -> Iterator[pb.ProcessingResponse]:
    """The body of a duplex request: Envoy has given it away, and takes it back in pieces."""
    view = memoryview(body)
    for start in range(0, max(len(body), 1), MAX_CHUNK_BYTES):
        piece = bytes(view[start : start + MAX_CHUNK_BYTES])
        yield _streamed("request_body", piece, start + MAX_CHUNK_BYTES >= len(body))


def _streamed(kind: str, piece: bytes, is_last: bool) -> pb.ProcessingResponse:
    streamed = pb.StreamedBodyResponse(body=piece, end_of_stream=is_last)
    mutation = pb.BodyMutation(streamed_response=streamed)
    return pb.ProcessingResponse(**{kind: pb.BodyResponse(response=pb.CommonResponse(body_mutation=mutation))})


def request_trailers_go_on() -> pb.ProcessingResponse:
    """The request's trailers go on."""
    return pb.ProcessingResponse(request_trailers=pb.TrailersResponse())


def response_headers_go_on(added: Pairs) -> pb.ProcessingResponse:
    """The answer's headers go on, with these beside them."""
    common = pb.CommonResponse(header_mutation=_mutation(added))
    return pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=common))


def response_body_goes_on(piece: bytes, is_last: bool, *, is_duplex: bool) -> pb.ProcessingResponse:
    """A part of the answer's body goes on as it is."""
    if is_duplex:
        return _streamed("response_body", piece, is_last)
    return pb.ProcessingResponse(response_body=pb.BodyResponse())


def response_trailers_go_on() -> pb.ProcessingResponse:
    """The answer's trailers go on."""
    return pb.ProcessingResponse(response_trailers=pb.TrailersResponse())


def answer(status: int, headers: Pairs, body: bytes, code: str) -> pb.ProcessingResponse:
    """No endpoint: the client gets this.

    Args:
        status: HTTP status.
        code: Our error code, for the gateway's access log.
    """
    immediate = pb.ImmediateResponse(headers=_mutation(headers), body=body, details=code)
    immediate.status.code = status
    return pb.ProcessingResponse(immediate_response=immediate)
