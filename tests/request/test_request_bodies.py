"""Bodies: JSON as the engine's own parser reads it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.request import bodies
from router.request.reasons import NotUnderstoodError, Reason

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECT = {"prompt": "grüße 👋", "n": 1}


@settings(deadline=None)
@given(st.dictionaries(st.text(), values))
def test_objects_read_as_json_does(value: dict[str, Any]) -> None:
    """Any object that Python's json writes is read as Python's json reads it."""
    body = json.dumps(value).encode()
    assert bodies.parse(body) == json.loads(body)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings(encoding: str) -> None:
    """UTF-8, a byte order mark, UTF-16 and UTF-32 are read."""
    assert bodies.parse(json.dumps(OBJECT, ensure_ascii=False).encode(encoding)) == OBJECT


@pytest.mark.parametrize(
    "body",
    [b'{"cache_salt":"a","cache_salt":"b"}', b'{"cache_salt":"a","\\u0063ache_salt":"b"}'],
)
def test_the_last_of_equal_keys_holds(body: bytes) -> None:
    """Of duplicate keys the last wins, also when one is spelled with escapes."""
    assert bodies.parse(body) == {"cache_salt": "b"}


def test_what_orjson_refuses_and_json_reads() -> None:
    """NaN and lone surrogates are read."""
    assert bodies.parse(b'{"temperature": NaN, "x": "\\ud800"}')["x"] == "\ud800"


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"[]", b'"text"', b"null", b"5", b"\xff\xfe", b'{"a":1}x', b"\x1f\x8b\x08\x00abc", b"{'a': 1}"],
)
def test_no_object(body: bytes) -> None:
    """What is no JSON object is bad_json."""
    with pytest.raises(NotUnderstoodError) as error:
        bodies.parse(body)
    assert error.value.reason is Reason.BAD_JSON


def test_deep_nesting_is_bad_json() -> None:
    """A body nested deeper than any parser goes is bad_json and no crash."""
    with pytest.raises(NotUnderstoodError):
        bodies.parse(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_parse_raises_nothing_else(body: bytes) -> None:
    """Any bytes give an object or NotUnderstoodError."""
    with contextlib.suppress(NotUnderstoodError):
        assert isinstance(bodies.parse(body), dict)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), ("true", True), ("YES", True), (1, True), (1.0, True), (False, False), ("off", False), (0, False)],
)
def test_flags_in_lax_mode(value: object, expected: bool) -> None:
    """A boolean may be spelled as the engine's checks allow."""
    assert bodies.flag(value, default=not expected) is expected


@pytest.mark.parametrize("value", [None, 2, "maybe", [], {}, 0.5])
def test_no_flag_is_the_default(value: object) -> None:
    """Anything else is the default."""
    assert bodies.flag(value, default=True)
    assert not bodies.flag(value, default=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (16, 16),
        (16.0, 16),
        ("16", 16),
        (True, 1),
        (1.5, None),
        ("x", None),
        (None, None),
        ([1], None),
        ("9" * 99, None),
    ],
)
def test_integers_in_lax_mode(value: object, expected: int | None) -> None:
    """A number may be a whole float or text."""
    assert bodies.integer(value) == expected


@pytest.mark.parametrize(
    ("value", "is_ids"),
    [([0, 5], True), ([], True), ([-1], False), ([True], False), ([1.0], False), ([2**63], False), (["1"], False)],
)
def test_token_ids(value: list[Any], is_ids: bool) -> None:
    """Token ids are plain numbers from 0."""
    assert (bodies.token_ids(value) is not None) == is_ids
