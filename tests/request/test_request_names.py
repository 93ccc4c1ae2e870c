"""Aliases and splits change one value of a body and nothing beside it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request.names import ModelNames, conversation_key

SERVED = [["big"], ["big", "small"]]
NAMES = ModelNames({"gpt-4o": "big", "naïve": "big"}, {"mix": [("big", 3.0), ("small", 1.0)]}, lambda: SERVED)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"model": "gpt-4o", "prompt": "x"}', b'{"model": "big", "prompt": "x"}'),
        (b'{"prompt":"gpt-4o","model":\t"gpt-4o" }', b'{"prompt":"gpt-4o","model":\t"big" }'),
        (b'{"a": {"model": "gpt-4o"}, "model": "gpt-4o"}', b'{"a": {"model": "gpt-4o"}, "model": "big"}'),
        (b'{"model": "other", "model": "gpt-4o"}', b'{"model": "other", "model": "big"}'),
        (b'{"model": "gpt-4o", "model": "other"}', b'{"model": "gpt-4o", "model": "other"}'),
        (b'{"\\u006dodel": "gpt\\u002d4o"}', b'{"\\u006dodel": "big"}'),
        (b'{"model": "na\xc3\xafve"}', b'{"model": "big"}'),
        (b'{"model": "big", "messages": [{"role": "user", "content": "\\"model\\": \\"gpt-4o\\""}]}', None),
        (b'{"model": ["gpt-4o"]}', None),
        (b'{"model": "gpt-4o"', None),
        (b'["gpt-4o"]', None),
        (b"gpt-4o", None),
        (b'{"n": 1.0, "model": "gpt-4o", "x": [1, {"y": "}"}]}', b'{"n": 1.0, "model": "big", "x": [1, {"y": "}"}]}'),
    ],
)
def test_the_value_of_model_alone_is_written_anew(body: bytes, wanted: bytes | None) -> None:
    """However it is spelled and wherever it stands; the last one holds, as in the engine."""
    assert NAMES.renamed(body) == (body if wanted is None else wanted)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=6), st.booleans(), st.integers(0, 5))
def test_any_body_keeps_all_its_other_values(rest: dict[str, Any], escapes: bool, place: int) -> None:
    """What the engine reads is the same but for the model."""
    items = [item for item in rest.items() if item[0] != "model"]
    items.insert(min(place, len(items)), ("model", "gpt-4o"))
    body = json.dumps(dict(items), ensure_ascii=escapes).encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return
    renamed = NAMES.renamed(body)
    assert json.loads(renamed) == {**dict(items), "model": "big"}
    assert len(renamed) == len(body) - len("gpt-4o") + len("big")


def test_an_alias_that_all_engines_serve_passes_as_it_is() -> None:
    """They were started with it; where one was not, all get the model's own name."""
    alias = {"alias": "big"}
    assert ModelNames(alias, {}, lambda: [["big", "alias"]]).model_for("alias", bytes) is None
    assert ModelNames(alias, {}, lambda: [["alias"]]).model_for("alias", bytes) is None
    assert ModelNames(alias, {}, lambda: [["big", "alias"], ["big"]]).model_for("alias", bytes) == "big"
    assert ModelNames(alias, {}, lambda: [["other"]]).model_for("alias", bytes) == "big"


def chat(number: int, turns: int = 1) -> bytes:
    """A conversation after so many turns."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Question {number}"}]
    for turn in range(turns - 1):
        messages += [{"role": "assistant", "content": f"Answer {turn}"}, {"role": "user", "content": f"And {turn}?"}]
    return json.dumps({"model": "mix", "messages": messages, "temperature": turns}).encode()


def model_of(body: bytes, names: ModelNames = NAMES) -> str:
    """The model that a body goes to."""
    return str(json.loads(names.renamed(body))["model"])


def test_a_split_holds_its_weights() -> None:
    """3 to 1 over 4,000 conversations: within four standard deviations of a binomial draw."""
    counted = Counter(model_of(chat(number)) for number in range(4_000))
    assert abs(counted["big"] - 3_000) < 4 * (4_000 * 0.75 * 0.25) ** 0.5


def test_a_conversation_stays_with_its_model() -> None:
    """Through all its turns, whatever the other parameters."""
    for number in range(50):
        assert len({model_of(chat(number, turns)) for turns in range(1, 5)}) == 1


def test_a_changed_weight_moves_no_more_than_it_must() -> None:
    """From 3:1 to 2:1, a twelfth of all conversations goes from the first to the second, and none back."""
    changed = ModelNames({}, {"mix": [("big", 2.0), ("small", 1.0)]}, lambda: SERVED)
    moves = Counter((model_of(chat(number)), model_of(chat(number), changed)) for number in range(4_000))
    assert moves[("small", "big")] == 0
    assert abs(moves[("big", "small")] - 4_000 / 12) < 4 * (4_000 / 12) ** 0.5


def test_a_model_that_nobody_serves_gets_nothing() -> None:
    """The others take its share; where none is served, the engine's own answer tells."""
    alone = ModelNames({}, {"mix": [("big", 1.0), ("small", 9.0)]}, lambda: [["big"]])
    assert {model_of(chat(number), alone) for number in range(50)} == {"big"}
    nobody = ModelNames({}, {"mix": [("big", 1.0), ("small", 9.0)]}, lambda: [["other"]])
    assert {model_of(chat(number), nobody) for number in range(50)} == {"big", "small"}


@pytest.mark.parametrize(
    "data",
    [
        {"prompt": "Once upon a time"},
        {"prompt": [1, 2, 3]},
        {"prompt": ["a", "b"]},
        {"input": [{"role": "user", "content": "hello"}]},
        {"system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"query": "q", "documents": ["a"]},
        {"odd": {"x": 1}},
    ],
)
def test_every_kind_of_body_has_a_key(data: dict[str, Any]) -> None:
    """Which does not change with the name that was asked for, and changes with the prompt."""
    assert conversation_key({**data, "model": "a"}) == conversation_key({**data, "model": "b"})
    assert conversation_key(data) != conversation_key({"prompt": "something else"})


def test_the_form_of_an_audio_request_is_renamed_too() -> None:
    """The field alone; the audio's bytes stay."""
    audio = bytes(range(256)) * 4
    head = b'--B0\r\nContent-Disposition: form-data; name="file"; filename="gpt-4o.wav"\r\n\r\n' + audio
    body = head + b'\r\n--B0\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt-4o\r\n--B0--\r\n'
    wanted = body.replace(b"\r\n\r\ngpt-4o\r\n", b"\r\n\r\nbig\r\n")
    assert NAMES.renamed(body, b"multipart/form-data; boundary=B0") == wanted
    assert NAMES.renamed(body, b'multipart/form-data; charset=x; boundary="B0"') == wanted
    assert NAMES.renamed(body, b"multipart/form-data; boundary=B1") == body
    assert NAMES.renamed(wanted, b"multipart/form-data; boundary=B0") == wanted
