"""The CBOR encoder against cbor2, which the engine uses."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.kv.encodings import cbor, cbor_block_prefix, encoded_id, pickled

EDGES = [0, 1, 23, 24, 255, 256, 65535, 65536, 2**18 - 1, 2**18, 2**32 - 1, 2**32, 2**64 - 1]
items = st.recursive(
    st.none() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.lists(inner, max_size=30).map(tuple),
    max_leaves=20,
)


@settings(deadline=None)
@given(items)
def test_cbor_is_canonical(item: object) -> None:
    """Every key that a block can have is encoded as cbor2 encodes it."""
    assert cbor(item) == cbor2.dumps(item, canonical=True)


@pytest.mark.parametrize("number", EDGES + [-1 - edge for edge in EDGES])
def test_cbor_integers_at_the_edges(number: int) -> None:
    """Integers take the shortest form on both sides of each limit."""
    assert cbor(number) == cbor2.dumps(number, canonical=True)


@pytest.mark.parametrize("token_id", [edge for edge in EDGES for _ in (1, 2)])
def test_token_ids_are_encoded_the_same_when_met_again(token_id: int) -> None:
    """A kept encoding is the same as a fresh one."""
    assert encoded_id(token_id) == cbor2.dumps(token_id, canonical=True)


def test_clients_can_not_fill_the_memory_with_ids() -> None:
    """Ids that no vocabulary has are encoded and not kept."""
    kept = len(encoded_id.__self__)  # type: ignore[attr-defined]
    for token_id in range(2**40, 2**40 + 100):
        encoded_id(token_id)
    assert len(encoded_id.__self__) == kept  # type: ignore[attr-defined]


def test_block_prefix() -> None:
    """The parts around parent and ids make up the encoding of a whole block."""
    parent, ids = b"p" * 32, tuple(range(16))
    before_parent, before_ids = cbor_block_prefix(32, 16)
    whole = before_parent + parent + before_ids + b"".join(map(encoded_id, ids)) + cbor(None)
    assert whole == cbor2.dumps((parent, ids, None), canonical=True)


@pytest.mark.parametrize("item", [1.5, True, {"a": 1}, {1}])
def test_cbor_refuses_what_no_key_holds(item: object) -> None:
    """A type that no key holds is an error and not some bytes."""
    with pytest.raises(TypeError):
        cbor(item)


def test_cbor_refuses_numbers_over_64_bits() -> None:
    """A number that needs more than 64 bits is an error."""
    with pytest.raises(OverflowError):
        cbor(2**64)


def test_cbor_takes_any_text() -> None:
    """A lone surrogate, which JSON can spell, gives some bytes and no error."""
    assert isinstance(cbor("\ud800"), bytes)


def test_pickle_is_protocol_5() -> None:
    """The pickle schemes hash protocol 5, whatever a later Python takes for its highest."""
    assert pickled(("x", 1))[:2] == b"\x80\x05"
