"""The salt in the body: the only change, the last word, and nothing that would fool it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import AmbiguousBodyError, CacheSaltRefusedError, IsolationUnsupportedError, WarmrouteError
from router.request.auth.isolation import carries_salt, salted
from router.request.auth.tenants import Tenant

ACME = Tenant("acme", b"0123456789abcdef")
SALT = ACME.salt()
MINE = f'"cache_salt":"{SALT}"'.encode()


def as_the_engine_reads(body: bytes) -> Any:
    """FastAPI gives Python's json the raw bytes."""
    return json.loads(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":1}', b'{"a":1,' + MINE + b"}"),
        (b"{}", b"{" + MINE + b"}"),
        (b" {\r\n\t} \n", b" {\r\n\t" + MINE + b"} \n"),
        (b'{"a": "}" } ', b'{"a": "}" ,' + MINE + b"} "),
        (b'{"a":{"cache_salt":"x"}}', b'{"a":{"cache_salt":"x"},' + MINE + b"}"),
        (b'{"a":"\\"cache_salt\\":\\"x"}', b'{"a":"\\"cache_salt\\":\\"x",' + MINE + b"}"),
        (b'{"a":NaN}', b'{"a":NaN,' + MINE + b"}"),
        (b'{"a":"\\ud83d"}', b'{"a":"\\ud83d",' + MINE + b"}"),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2,' + MINE + b"}"),
    ],
)
def test_the_salt_is_written_before_the_closing_brace(body: bytes, expected: bytes) -> None:
    """Everything else stays byte for byte."""
    assert salted(body, ACME) == expected
    assert as_the_engine_reads(expected)["cache_salt"] == SALT


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4), max_leaves=8
)


@given(st.dictionaries(st.text(max_size=8), VALUE, max_size=6))
def test_any_object_keeps_its_bytes_and_gets_the_salt(fields: dict[str, Any]) -> None:
    """Whatever the fields, the engine reads them as before and our salt."""
    fields.pop("cache_salt", None)
    for ascii_only in (True, False):
        body = json.dumps(fields, ensure_ascii=ascii_only).encode("utf-8", "replace")
        if fields.get("previous_response_id") is not None or fields.get("kv_transfer_params") is not None:
            continue
        out = salted(body, ACME)
        assert out.startswith(body[:-1])
        assert out.endswith(MINE + b"}")
        assert as_the_engine_reads(out) == as_the_engine_reads(body) | {"cache_salt": SALT}


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ucache_salt0 \n', max_size=60).map(str.encode))
def test_bytes_that_pass_give_the_engine_our_salt(body: bytes) -> None:
    """No body gets through with another salt as its last word."""
    try:
        out = salted(body, ACME)
    except WarmrouteError:
        return
    read = as_the_engine_reads(out)
    assert isinstance(read, dict)
    assert read["cache_salt"].startswith(SALT) or "cache_salt" in as_the_engine_reads(body)
    assert out.rstrip().endswith(b'"}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"cache_salt"',
        b"{",
        b'{"a":1',
        b'{"a":1}}',
        b'{"a":1}{"cache_salt":"x"}',
        b'{"a":1} x',
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":1}\0',
        b'{"a":"\0"}',
        b'\0{"a":1}',
        b"\xef\xbb\xbf" + b'{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-16-be"),
        '{"a":1}'.encode("utf-32"),
        '{"a":1}'.encode("utf-32-le"),
        '{"a":1}'.encode("utf-7") + b"\x2b",
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"cache_salt":"x","cache_salt":"x"}',
        b'{"cache_salt":"x","cache_salt":null}',
        b'{"\\u0063ache_salt":"x"}',
        b'{"cache_salt":"x","\\u0063ache_salt":"y"}',
        b'{"cache\\u005Fsalt":null}',
        b'{"a":{"cache_salt":"x"},"cache_sal\\u0074":"x"}',
        b'{"a":"\\"","cache_salt":"x","cache_salt" :"y"}',
        b'{"a":1}// {"cache_salt":"x"}',
    ],
)
def test_a_body_that_might_be_read_differently_is_refused(body: bytes) -> None:
    """Escaped spellings, repeats, marks, other encodings, more than one value, no object."""
    with pytest.raises(AmbiguousBodyError):
        salted(body, ACME)


def test_a_client_s_own_salt_becomes_part_of_the_tenant_s() -> None:
    """By default: the client's groups stay apart, within the tenant."""
    body = b'{"cache_salt": "mine", "a": {"cache_salt": 1}}'
    read = as_the_engine_reads(salted(body, ACME))
    assert read["cache_salt"] == ACME.salt("mine") != SALT
    assert as_the_engine_reads(salted(b'{"cache_salt":null}', ACME))["cache_salt"] == SALT


@pytest.mark.parametrize("own", ["", "a@b", "a/b", "a\\b", "a\0b", "x" * 129, 1, True, ["x"], {"a": "b"}])
def test_a_salt_that_the_engine_would_refuse_is_refused(own: object) -> None:
    """As without the router."""
    with pytest.raises(CacheSaltRefusedError):
        salted(json.dumps({"cache_salt": own}).encode(), ACME)


def test_a_client_s_own_salt_is_refused_where_it_is_so_configured() -> None:
    """`isolation.client_salt: refuse`."""
    strict = Tenant("acme", b"0123456789abcdef", combines_salts=False)
    with pytest.raises(CacheSaltRefusedError):
        salted(b'{"cache_salt":"mine"}', strict)
    assert b'"cache_salt":null' in salted(b'{"cache_salt":null}', strict)


@pytest.mark.parametrize("field", ["previous_response_id", "kv_transfer_params"])
def test_what_others_left_in_the_engine_is_out_of_reach(field: str) -> None:
    """A salt does not guard what is named by id."""
    with pytest.raises(IsolationUnsupportedError) as caught:
        salted(json.dumps({field: "resp_1"}).encode(), ACME)
    assert caught.value.param == field
    assert salted(json.dumps({field: None}).encode(), ACME)


@pytest.mark.parametrize(
    ("path", "needs"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
        ("/v1/responses", True),
        ("/v1/messages", True),
        ("/v1/embeddings", True),
        ("/pooling", True),
        ("/classify", True),
        ("/v1/score", True),
        ("/rerank", True),
        ("/v1/models", False),
        ("/tokenize", False),
        ("/detokenize", False),
        ("/version", False),
    ],
)
def test_each_path_needs_a_salt_or_computes_nothing(path: str, needs: bool) -> None:
    """By vLLM 0.32's own request models."""
    assert carries_salt(path) is needs


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations", "/invocations", "/v1/other"])
def test_a_path_that_can_t_carry_a_salt_is_refused(path: str) -> None:
    """Rather than served beside others' blocks."""
    with pytest.raises(IsolationUnsupportedError):
        carries_salt(path)
