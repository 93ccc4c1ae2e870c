"""Extra keys: which block gets which, and how the pickle schemes tell objects apart."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from router.kv.extra_keys import ExtraKeys, Lora, MediaItem
from router.kv.hashes import chain_digests
from router.kv.schemes import HashAlgorithm, Scheme

SCHEME = Scheme(HashAlgorithm.SHA256, 4)


def test_order_of_keys() -> None:
    """LoRA, media, salt, embeddings: in this order, tagged."""
    extra = ExtraKeys(Lora("ad", "/ad"), "salt", (MediaItem("img", 1, 2),), ("aa" * 32,))
    assert extra.for_block(0, 4) == (
        ("lora", "ad", "/ad"),
        ("mm", "img", 1),
        ("cache_salt", "salt"),
        ("prompt_embeds", b"\xaa" * 32),
    )


def test_no_keys_is_none() -> None:
    """A block without keys hashes None, not an empty tuple."""
    assert ExtraKeys().for_block(0, 4) is None
    assert ExtraKeys(salt="s").for_block(4, 8) is None


def test_salt_is_on_the_first_block_alone() -> None:
    """Later blocks get the salt through their parent only."""
    extra = ExtraKeys(salt="s")
    assert [extra.for_block(start, start + 4) for start in (0, 4)] == [(("cache_salt", "s"),), None]


def test_an_empty_salt_is_none() -> None:
    """The engine refuses an empty salt; it hashes as no salt."""
    assert ExtraKeys(salt="").for_block(0, 4) is None


def test_media_offsets_count_from_the_block() -> None:
    """An item over several blocks is on each of them, with an offset that may be negative."""
    extra = ExtraKeys(media=(MediaItem("i", 6, 8),))
    keys = [extra.for_block(start, start + 4) for start in range(0, 20, 4)]
    assert keys == [None, (("mm", "i", 2),), (("mm", "i", -2),), (("mm", "i", -6),), None]


@pytest.mark.parametrize(
    ("items", "keys"),
    [
        ([("a", 0, 10), ("b", 2, 1)], [(("mm", "a", 0),), None, None]),
        ([("a", 2, 0)], [(("mm", "a", 2),), None, None]),
    ],
)
def test_odd_media(items: list[tuple[str, int, int]], keys: list[object]) -> None:
    """Items within others, and items of no tokens, are on the blocks where the engine's library puts them."""
    extra = ExtraKeys(media=tuple(MediaItem(*item) for item in items))
    assert [extra.for_block(start, start + 4) for start in range(0, 12, 4)] == keys


def test_embeddings_have_a_digest_a_block() -> None:
    """Each block is hashed with the digest of its own embeddings."""
    extra = ExtraKeys(embeds=("00" * 32, "11" * 32))
    assert extra.for_block(4, 8) == (("prompt_embeds", b"\x11" * 32),)


@pytest.mark.parametrize(
    ("extra", "keys"),
    [
        (ExtraKeys(lora=Lora("same", "same")), (("lora", "same", "same"),)),
        (ExtraKeys(lora=Lora("cache_salt", "x y"), salt="x y"), (("lora", "cache_salt", "x y"), ("cache_salt", "x y"))),
    ],
)
def test_equal_texts_are_separate_objects(extra: ExtraKeys, keys: tuple[tuple[str, ...], ...]) -> None:
    """With equal texts in its keys, sha256 hashes what an engine does that decoded each of them from a message."""
    apart = tuple((key[0], *(text.encode().decode() for text in key[1:])) for key in keys)
    pickle_bytes = pickle.dumps((SCHEME.root(), (1, 2, 3, 4), apart), protocol=5)
    assert chain_digests([1, 2, 3, 4], SCHEME, extra) == [hashlib.sha256(pickle_bytes).digest()]


def test_media_share_a_text_where_the_caller_does() -> None:
    """One identifier object for two items, and two equal ones, differ under sha256: pickle tells them apart."""
    name = "a" * 64
    shared = ExtraKeys(media=(MediaItem(name, 0, 1), MediaItem(name, 2, 1)))
    apart = ExtraKeys(media=(MediaItem(name, 0, 1), MediaItem(name.encode().decode(), 2, 1)))
    ids = [1, 2, 3, 4]
    assert chain_digests(ids, SCHEME, shared) != chain_digests(ids, SCHEME, apart)
    cbor = Scheme(HashAlgorithm.SHA256_CBOR, 4)
    assert chain_digests(ids, cbor, shared) == chain_digests(ids, cbor, apart)
