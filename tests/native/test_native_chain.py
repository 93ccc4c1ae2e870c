"""The chain hashed in C is the chain hashed in Python, with the processor's instructions for SHA-256 and without."""

from __future__ import annotations

import random
import threading
import time
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv import hashes
from router.kv.extra_keys import NO_EXTRA_KEYS, ExtraKeys, Lora
from router.kv.hashes import chain_digests
from router.kv.schemes import HashAlgorithm, Scheme
from router.native import core
from router.request.token_ids import packed

NATIVE = core("chain")
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native core is not built here")

EDGES = [0, 23, 24, 255, 256, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**39, 2**55, 2**63, 2**64 - 1]
ids = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**18), st.integers(0, 2**64 - 1))
algorithms = st.sampled_from([HashAlgorithm.SHA256, HashAlgorithm.SHA256_CBOR])
texts = st.text(max_size=8) | st.text(min_size=250, max_size=300)
extras = st.builds(
    ExtraKeys, lora=st.none() | st.builds(Lora, name=texts, path=texts), salt=st.none() | st.text(max_size=300)
)


class _Portable:
    """The core without the processor's instructions."""

    @staticmethod
    def sha256_chain(*arguments: Any) -> list[bytes]:
        assert NATIVE is not None
        digests: list[bytes] = NATIVE.sha256_chain(*arguments, True)
        return digests


def _with(native: object, *arguments: Any, **options: Any) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "_NATIVE", native)
        return chain_digests(*arguments, **options)


@given(
    st.lists(ids, max_size=90),
    st.builds(Scheme, algorithms, st.sampled_from([1, 2, 3, 4, 5, 16, 23, 24, 64]), st.none() | st.text()),
    extras,
    st.integers(0, 3),
)
def test_any_chain(token_ids: list[int], scheme: Scheme, extra: ExtraKeys, known: int) -> None:
    """Ids of every width, adapters and salts, blocks of every size, from the root and from a known block on."""
    plain = _with(None, token_ids, scheme, extra)
    assert _with(NATIVE, token_ids, scheme, extra) == plain
    assert _with(_Portable, token_ids, scheme, extra) == plain
    if len(plain) >= known > 0:
        assert _with(NATIVE, token_ids, scheme, extra, after=(known, plain[known - 1])) == plain[known:]
    if all(token_id < 2**32 for token_id in token_ids):
        assert _with(NATIVE, packed(token_ids), scheme, extra) == plain


@pytest.mark.parametrize("algorithm", [HashAlgorithm.SHA256, HashAlgorithm.SHA256_CBOR])
@pytest.mark.parametrize("size", [100, 255, 256, 257, 4_096, 4_097, 20_000])
def test_large_blocks(algorithm: HashAlgorithm, size: int) -> None:
    """Blocks whose pickle has a frame of many kilobytes, and those with several."""
    rng = random.Random(size)
    token_ids = [rng.choice([rng.randrange(2**18), rng.randrange(2**40)]) for _ in range(3 * size + 1)]
    extra = ExtraKeys(lora=Lora("adapter", "/" + "x" * 3_000), salt="s" * 70_000)
    for keys in (NO_EXTRA_KEYS, extra, ExtraKeys(lora=Lora("a", "x" * 9_000))):
        plain = _with(None, token_ids, Scheme(algorithm, size), keys)
        assert len(plain) == 3
        assert _with(NATIVE, token_ids, Scheme(algorithm, size), keys) == plain


def test_other_threads_run_meanwhile() -> None:
    """A long chain does not hold the interpreter: another thread counts all the while."""
    token_ids = array("I", range(4_000_000))
    scheme = Scheme(HashAlgorithm.SHA256_CBOR, 16)
    seen: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(time.perf_counter())

    thread = threading.Thread(target=watch)
    thread.start()
    begun = time.perf_counter()
    assert NATIVE is not None
    NATIVE.sha256_chain(token_ids, 0, 16, scheme.root(), False, b"\xf6")
    ended = time.perf_counter()
    done.set()
    thread.join()
    # The list of digests is made with the interpreter held; the hashing before it is most of the time.
    assert sum(begun < moment < ended for moment in seen) > 5


@pytest.mark.parametrize(
    ("first", "size", "parent"), [(0, 0, bytes(32)), (-1, 4, bytes(32)), (9, 4, bytes(32)), (0, 4, bytes(16))]
)
def test_what_makes_no_sense_is_refused(first: int, size: int, parent: bytes) -> None:
    """No block of nothing, no ids before the first, no digest of another length."""
    assert NATIVE is not None
    with pytest.raises(ValueError, match="a parent 32 bytes"):
        NATIVE.sha256_chain(array("I", range(8)), first, size, parent, False, b"\xf6")
