"""Prompts with media: what an engine's rendering is asked, and what its answers mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.kv.extra_keys import ExtraKeys, MediaItem
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.request import remote_render
from router.request.endpoints import Shape
from router.request.reader import PromptReader
from router.request.reasons import Reason
from router.request.remote import question_for, read_answer, take_answer
from router.request.token_cache import TokenCache

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BODY = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}]}
CHAT = "/v1/chat/completions"
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 32)
IDS = list(range(1_000, 1_344))
# What vLLM 0.32 answered of four pictures, of which the third is the first again and the last has a `uuid`.
NAMES = [
    "677f6c63352d617377e99ea79dbbf820681dca934ecab2e45b44322efcd20d9d",
    "e1b364a9d32cf58b0572ce2a076c944619b1fce7a958c0a8a7f8af1208a0696d",
    "677f6c63352d617377e99ea79dbbf820681dca934ecab2e45b44322efcd20d9d",
    "x",
]
PLACES = [(3, 108), (112, 58), (171, 108), (299, 36)]
FEATURES = {
    "mm_hashes": {"image": NAMES},
    "mm_placeholders": {"image": [{"offset": offset, "length": length} for offset, length in PLACES]},
    "kwargs_data": None,
    "mm_metadata": None,
}


def _answer(features: Any, ids: Any = IDS) -> bytes:
    fields = {"request_id": "chatcmpl-1", "token_ids": ids, "features": features, "content_parts": None}
    return json.dumps(fields).encode()


def test_an_answer_gives_items_and_their_places() -> None:
    """Identifiers as the engine hashes them, offsets and lengths in the order of the prompt."""
    told = remote_render.answer(_answer(FEATURES), 10_000)
    items = tuple(MediaItem(name, *place) for name, place in zip(NAMES, PLACES, strict=True))
    assert told == (IDS, items)


def test_equal_identifiers_are_objects_of_their_own() -> None:
    """As in the engine, where each is decoded from a message: the pickled schemes tell the difference."""
    told = remote_render.answer(_answer(FEATURES), 10_000)
    assert told is not None
    first, _, third, _ = told[1]
    assert first.identifier == third.identifier
    assert first.identifier is not third.identifier


def test_items_of_several_kinds_are_in_the_order_of_their_places() -> None:
    """The engine's answer lists them by kind, its hashes take them by offset."""
    features = {
        "mm_hashes": {"image": ["i"], "audio": ["a"]},
        "mm_placeholders": {"image": [{"offset": 50, "length": 5}], "audio": [{"offset": 10, "length": 20}]},
    }
    told = remote_render.answer(_answer(features), 10_000)
    assert told is not None
    assert told[1] == (MediaItem("a", 10, 20), MediaItem("i", 50, 5))


def test_a_prompt_without_media() -> None:
    """The engine answers no features at all."""
    assert remote_render.answer(_answer(None), 10_000) == (IDS, ())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        _answer(None, "x"),
        _answer(None, [1, "a"]),
        _answer("x"),
        _answer({}),
        _answer({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {}}),
        _answer({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": []}}),
        _answer({"mm_hashes": {"image": [1]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}}),
        _answer({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": -1, "length": 2}]}}),
        _answer({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 343, "length": 2}]}}),
        _answer({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 0}]}}),
        _answer({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": True, "length": 1}]}}),
    ],
)
def test_odd_answers(answer: bytes) -> None:
    """What is no rendering, or places an item outside of the prompt, tells nothing."""
    assert remote_render.answer(answer, 10_000) is None


def test_answers_without_end() -> None:
    """More ids than are taken, and more items, tell nothing."""
    assert remote_render.answer(_answer(None), len(IDS) - 1) is None
    count = remote_render.MAX_ITEMS + 1
    ids = [1] * count
    places = [{"offset": place, "length": 1} for place in range(count)]
    features = {"mm_hashes": {"image": ["a"] * count}, "mm_placeholders": {"image": places}}
    assert remote_render.answer(_answer(features, ids), count) is None


def test_long_bodies_are_not_sent_twice() -> None:
    """Nor those of APIs that have no rendering."""
    assert remote_render.question(Shape.CHAT, BODY, remote_render.MAX_BODY_BYTES + 1) is None
    assert remote_render.question(Shape.EMBEDDING, BODY, 10) is None


def test_the_chain_goes_through_the_media() -> None:
    """A prompt that was known up to its first picture has its whole chain, with the keys of each."""
    raw = json.dumps(BODY).encode()
    prompt = PromptReader(lambda _: None).read(CHAT, raw)
    prompt.reason = Reason.MEDIA
    question = question_for(prompt, CHAT, raw)
    assert question is not None
    assert question.renders
    told = read_answer(question, _answer(FEATURES))
    assert told is not None
    take_answer(prompt, told[0], TokenCache(), told[1])
    assert (prompt.token_ids, prompt.tokens, prompt.reason) == (IDS, len(IDS), None)
    assert prompt.chain(SCHEME, None) == chain(IDS, SCHEME, ExtraKeys(media=told[1]))
    assert prompt.chain(SCHEME, None) != chain(IDS, SCHEME)
