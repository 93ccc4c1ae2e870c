"""The beginnings that come most often are known with their tokens, within bounds."""

from __future__ import annotations

import random

import pytest

from router.index.hot_prefixes import HALF_LIFE_S, HotPrefixes
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


def ids(name: str, tokens: int) -> list[int]:
    """Tokens that nothing else begins with."""
    rng = random.Random(name)
    return [rng.randrange(1_000, 50_000) for _ in range(tokens)]


def saw(hot: HotPrefixes, tokens: list[int], now_s: float = 0.0, model: str = "m", salt: str | None = None) -> None:
    """A prompt of these tokens came."""
    hot.saw(model, salt, chain(tokens, SCHEME), tokens, 16, now_s)


def test_a_common_beginning_is_found_with_its_tokens() -> None:
    """Within a quarter of an octave of where prompts part, and what comes once is not there."""
    hot = HotPrefixes()
    common = ids("system", 1_600)
    for number in range(20):
        saw(hot, common + ids(f"question {number}", 400))
        saw(hot, ids(f"once {number}", 3_000))
    [found] = hot.hottest(10, 10_000, 0.0)
    assert 1_600 * 0.8 <= len(found.token_ids) <= 1_600
    assert list(found.token_ids) == common[: len(found.token_ids)]
    assert found.block == chain(common, SCHEME)[len(found.token_ids) // 16 - 1]
    assert (found.model, found.salt, found.uses) == ("m", None, 20)


def test_the_list_is_by_what_is_saved_and_within_its_bounds() -> None:
    """Uses times tokens; two that share a beginning count it once."""
    hot = HotPrefixes()
    system = ids("system", 1_024)
    for number in range(10):
        saw(hot, system + ids(f"q{number}", 64))
    for _ in range(4):
        saw(hot, system + ids("document", 1_024))
    for _ in range(3):
        saw(hot, ids("other", 512))
    found = hot.hottest(10, 100_000, 0.0)
    assert [(len(each.token_ids), each.fresh_tokens, each.uses) for each in found] == [
        (1_024, 1_024, 14),
        (2_048, 1_024, 4),
        (512, 512, 3),
    ]
    assert [len(each.token_ids) for each in hot.hottest(1, 100_000, 0.0)] == [1_024]
    assert [len(each.token_ids) for each in hot.hottest(10, 1_600, 0.0)] == [1_024, 1_536]
    wanted = {found[2].block}
    assert [each.block for each in hot.hottest(10, 100_000, 0.0, lambda model, block: block in wanted)] == [*wanted]


def test_models_adapters_and_salts_are_told_apart() -> None:
    """The same tokens under another model are another beginning; a salt goes with its own."""
    hot = HotPrefixes()
    tokens = ids("same", 256)
    for _ in range(3):
        saw(hot, tokens, model="a")
        saw(hot, tokens, model="b")
        hot.saw("a", "secret", [number ^ 1 for number in chain(tokens, SCHEME)], tokens, 16, 0.0)
    found = hot.hottest(10, 10_000, 0.0)
    assert sorted((each.model, str(each.salt)) for each in found) == [("a", "None"), ("a", "secret"), ("b", "None")]
    assert "secret" not in repr(found)
    assert str(tokens[0]) not in repr(found)


def test_what_was_hot_cools() -> None:
    """Counts halve, so that yesterday's crowd does not take today's place."""
    hot = HotPrefixes()
    for _ in range(8):
        saw(hot, ids("crowd", 512))
    assert [each.uses for each in hot.hottest(1, 1_000, HALF_LIFE_S)] == [4.0]
    assert hot.hottest(1, 1_000, 3 * HALF_LIFE_S) == []


@pytest.mark.parametrize("turns", [1, 12])
def test_entries_and_tokens_are_bounded(turns: int) -> None:
    """However many prompts clients make up, and however often they come again; tokens are counted right."""
    hot = HotPrefixes(max_entries=500, max_tokens=20_000)
    rng = random.Random(5)
    for number in range(400):
        tokens = ids(f"{rng.randrange(60)}", 200) + ids(f"{number % 50}", 100 * rng.randrange(turns))
        saw(hot, tokens, float(number))
        assert len(hot) <= 500
        assert hot.kept_tokens == sum(map(len, hot._kept.values())) <= 20_000
    for found in hot.hottest(100, 10**6, 400.0):
        assert chain(found.token_ids, SCHEME)[-1] == found.block
    hot.clear()
    assert (len(hot), hot.kept_tokens, hot.hottest(10, 1_000, 400.0)) == (0, 0, [])


def test_a_growing_conversation_is_kept_once() -> None:
    """Its deeper beginnings hold the tokens of the shallower ones."""
    hot = HotPrefixes()
    conversation = ids("conversation", 6_000)
    for turn in range(1, 60):
        saw(hot, conversation[: 100 * turn])
    assert hot.kept_tokens <= 6_000
    assert hot.hottest(5, 10_000, 0.0)[0].uses > 10
