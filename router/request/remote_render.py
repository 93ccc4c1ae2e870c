"""Prompts with media: what the engine's own `/render` paths are asked, and what their answers mean.

How many tokens stand for a picture is its model's processor's knowledge, and the identifier that the engine hashes is
the client's `uuid` or a digest over the encoded bytes, the model's path and how the image was converted (vLLM 0.32:
BLAKE3, `multimodal/hasher.py`). Both come out of the engine's rendering, which engines started with
`--enable-scale-out` serve: ids, and of each item the identifier and its place. The picture is then decoded once more
than for the request alone (the engine keeps what it made of the last ones, for its renderings too). The client's body
is sent as it is, but for what the rendering refuses or need not make.

Two things may part the rendering from the request. Engines that load a model from another path have other identifiers,
so they must all have the same (`router.proxy.remote_reading` sees to it). And with `--enable-tower-connector-lora` an
adapter's name goes before the identifier when the request is computed: predictions for such adapters fail, and are
found out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from router.kv.extra_keys import MediaItem
from router.request import bodies
from router.request.endpoints import Shape
from router.request.reasons import NotUnderstoodError

PATHS = {
    Shape.CHAT: "/v1/chat/completions/render",
    Shape.RESPONSES: "/v1/responses/render",
    Shape.MESSAGES: "/v1/messages/render",
}
MAX_BODY_BYTES = 64 * 2**20
"""Longer bodies are not sent twice."""
MAX_ITEMS = 4_096
_LEFT_OUT = ("stream", "stream_options", "use_beam_search")  # the last one is refused there


def question(shape: Shape, fields: Mapping[str, Any], body_bytes: int) -> tuple[bytes, str] | None:
    """Return the body and path that tell of a request; None where there is no such path.

    Args:
        shape: Of the request's path.
        fields: Its body.
        body_bytes: The body's length.
    """
    path = PATHS.get(shape)
    if path is None or body_bytes > MAX_BODY_BYTES:
        return None
    asked = {name: value for name, value in fields.items() if name not in _LEFT_OUT}
    return orjson.dumps({**asked, "mm_payload": "none"}), path


def answer(body: bytes, max_ids: int) -> tuple[list[int], tuple[MediaItem, ...]] | None:
    """Return the ids and media items of an answer, the items in the order of their places; None when it is no answer.

    Args:
        body: The answer's.
        max_ids: More are not taken.
    """
    try:
        fields = bodies.parse(body)
    except NotUnderstoodError:
        return None
    given = fields.get("token_ids")
    token_ids = bodies.token_ids(given) if isinstance(given, list) and len(given) <= max_ids else None
    features = fields.get("features")
    if token_ids is None or not isinstance(features, (dict, type(None))):
        return None
    media = [] if features is None else _media(features, len(token_ids))
    return None if media is None else (token_ids, tuple(media))


def _media(features: Mapping[str, Any], tokens: int) -> list[MediaItem] | None:
    """Return the items of all kinds of media, or None when something about them is odd."""
    names, places = features.get("mm_hashes"), features.get("mm_placeholders")
    if not isinstance(names, dict) or not isinstance(places, dict) or names.keys() != places.keys():
        return None
    items: list[MediaItem] = []
    for modality, identifiers in names.items():
        ranges = places[modality]
        if not isinstance(identifiers, list) or not isinstance(ranges, list) or len(identifiers) != len(ranges):
            return None
        for identifier, place in zip(identifiers, ranges, strict=True):
            item = _item(identifier, place, tokens)
            if item is None or len(items) == MAX_ITEMS:
                return None
            items.append(item)
    return sorted(items, key=lambda item: item.offset)


def _item(identifier: object, place: object, tokens: int) -> MediaItem | None:
    if not isinstance(identifier, str) or not isinstance(place, dict):
        return None
    offset, length = place.get("offset"), place.get("length")
    if type(offset) is not int or type(length) is not int or not 0 <= offset < offset + length <= tokens:
        return None
    return MediaItem(identifier, offset, length)
