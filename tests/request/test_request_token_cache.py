"""The cache of token ids and block hashes: bounded, shared by threads, and never other ids than afresh."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from router.kv.extra_keys import ExtraKeys, Lora
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders import cutting
from router.request.encoders.table import Options, load_text
from router.request.model_text import ModelText
from router.request.reader import PromptReader
from router.request.reasons import NotUnderstoodError, Reason
from router.request.token_cache import Link, TokenCache

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer"
CHAT = "/v1/chat/completions"
SCHEMES = [
    Scheme(HashAlgorithm.SHA256_CBOR, 16),
    Scheme(HashAlgorithm.SHA256, 4, "7"),
    Scheme(HashAlgorithm.XXHASH_CBOR, 32, "0"),
]
LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789.,!?<>|_/ \n\tÄöüß漢字é") | {"\u2581"})


def _template(start: str, end: str) -> str:
    return (
        "{{ bos_token or '' }}{% for m in messages %}"
        + start
        + "{{ m.role }}\n{{ m.content }}"
        + end
        + "\n{% endfor %}"
        "{% if add_generation_prompt %}" + start + "assistant\n{% endif %}"
    )


def _bpe(unk: str = "<unk>", **options: Any) -> models.BPE:
    vocab = {unk: 0} | {letter: place for place, letter in enumerate(LETTERS, 1)}
    merges = [("a", "b"), ("t", "h"), ("th", "e"), ("\u2581", "a"), ("i", "n"), (" ", "a"), ("\n", "\n")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    return models.BPE(vocab=vocab, merges=merges, unk_token=unk, **options)


def _byte_level() -> Tokenizer:
    return Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))


def _sentencepiece() -> Tokenizer:
    """As Llama 2's: no pre-tokenizer, a normaliser that puts a mark before each text and for each space."""
    tokenizer = Tokenizer(_bpe(fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "<|im_start|>", "<|im_end|>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _metaspace_first() -> Tokenizer:
    """A mark before the first word of a prompt alone; and a token that takes the spaces after it."""
    tokenizer = Tokenizer(_bpe())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.add_special_tokens(
        [AddedToken("<|im_start|>", normalized=False), AddedToken("<|im_end|>", normalized=False, rstrip=True)]
    )
    return tokenizer


def _word_level() -> Tokenizer:
    """As BERT's: lower case, no accents, and a token at each end."""
    words = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "user",
        "assistant",
        "system",
        "the",
        "a",
        "b",
        *"abcdefghijklmnopqrstuvwxyz0123456789",
    ]
    tokenizer = Tokenizer(
        models.WordPiece({word: place for place, word in enumerate(dict.fromkeys(words))}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]"))
    )
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": _byte_level,
    "sentencepiece": _sentencepiece,
    "metaspace first": _metaspace_first,
    "bert": _word_level,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each kind of tokenizer."""
    made = {}
    for name, make in MAKERS.items():
        folder = tmp_path_factory.mktemp("tokenizer")
        make().save(str(folder / "tokenizer.json"))
        config = {"bos_token": "<s>"} if name == "sentencepiece" else {}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "chat_template.jinja").write_text(_template("<|im_start|>", "<|im_end|>"))
        made[name] = folder
    return made


words = st.sampled_from(
    [
        "the ",
        "a",
        "ab",
        " in\n",
        "\n\n",
        "  ",
        "Ä",
        "é",
        "e\u0301",
        "漢字",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_",
        "start|>",
        "<s>",
        "<",
        "|>",
        "\u0338",
        "x" * 40,
    ]
)
text = st.lists(words, max_size=30).map("".join)
message = st.builds(
    lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "assistant", "system"]), text
)


@pytest.mark.parametrize("name", list(MAKERS))
def test_pieces_give_the_ids_of_the_whole(name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations turn by turn through the cache give the ids of tokenising afresh, and their chains, too."""
    monkeypatch.setattr(cutting, "MIN_PIECE_CHARS", 1)
    fresh = Tokenizer.from_file(str(folders[name] / "tokenizer.json"))
    cached = load_text(folders[name], Options(cache=TokenCache()))
    reader = PromptReader(lambda _: cached, cache=TokenCache())
    assert isinstance(cached, ModelText)

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(message, min_size=1, max_size=8), st.booleans(), st.sampled_from(SCHEMES), st.sampled_from([None, "s"])
    )
    def check(turns: list[dict[str, str]], special: bool, scheme: Scheme, salt: str | None) -> None:
        for count in range(1, len(turns) + 1):
            body = {"messages": turns[:count], "add_special_tokens": special, "cache_salt": salt}
            prompt = reader.read(CHAT, json.dumps(body).encode())
            ids = fresh.encode(cached.render_chat(body), add_special_tokens=special).ids
            assert prompt.token_ids == ids
            lora = Lora("l", "/l") if count % 2 else None
            assert prompt.chain(scheme, lora) == chain(ids, scheme, ExtraKeys(lora=lora, salt=salt))

    check()


@pytest.mark.parametrize("name", list(MAKERS))
def test_the_next_turn_costs_its_new_message_alone(name: str, folders: dict[str, Path]) -> None:
    """Only pieces that were not seen are tokenised."""
    cache = TokenCache()
    text = load_text(folders[name], Options(cache=cache))
    reader = PromptReader(lambda _: text)
    turns = [
        {"role": role, "content": f"{number} " + "the in ab " * 30}
        for number, role in enumerate(["user", "assistant"] * 10)
    ]
    reader.read(CHAT, json.dumps({"messages": turns[:-2]}).encode())
    before = cache.misses
    reader.read(CHAT, json.dumps({"messages": turns}).encode())
    assert cache.misses - before == 2


UNSURE: dict[str, Callable[[Tokenizer], None]] = {
    "a token that takes the spaces before it": lambda t: t.add_special_tokens(
        [AddedToken("<|cut|>", normalized=False, lstrip=True)]
    ),
    "a token that is found after normalising": lambda t: t.add_special_tokens([AddedToken("<|cut|>", normalized=True)]),
    "a token that another one holds": lambda t: t.add_special_tokens(["<|cut|>", "<|cut|>er"]),
}


@pytest.mark.parametrize("case", list(UNSURE))
def test_never_cut_where_it_is_not_sure(case: str, tmp_path: Path) -> None:
    """A token that may not be taken where it stands in the text is none to cut at."""
    tokenizer = _byte_level()
    UNSURE[case](tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = load_text(tmp_path, Options())
    assert isinstance(text, ModelText)
    assert "<|cut|>" not in text.encoder.sure_tokens
    assert "<|im_start|>" in text.encoder.sure_tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"dropout": 0.1}},
        {"pre_tokenizer": {"type": "Unheard", "of": True}},
        {"added_tokens": {"single_word": True}},
    ],
)
def test_no_cuts_with_parts_that_may_look_further(changes: dict[str, Any], tmp_path: Path) -> None:
    """With merges left out at random, unknown parts, or tokens that look at their neighbours, nothing is cut."""
    from router.request.encoders.huggingface import HuggingFaceEncoder

    data = json.loads((GOLDEN / "tokenizer.json").read_text())
    description = {**data, "pre_tokenizer": changes.get("pre_tokenizer", data["pre_tokenizer"])}
    description["model"] = {**data["model"], **changes.get("model", {})}
    tokenizer = _byte_level()
    if "added_tokens" in changes:
        tokenizer.add_special_tokens([AddedToken("word", normalized=False, single_word=True)])
    assert HuggingFaceEncoder(tokenizer, description).sure_tokens == ()


def _entries(count: int) -> Iterator[tuple[bytes, Link]]:
    return ((number.to_bytes(16, "big"), Link([number], b"d")) for number in range(count))


def test_bounded_in_bytes() -> None:
    """Whatever is put in, the estimate stays under the bound, and the latest entry is there."""
    cache = TokenCache(10_000)
    cache.remember(_entries(1000))
    assert 5_000 < cache.used_bytes <= 10_000
    # The first of a call are its last to be forgotten: a chain without its beginning is of no use.
    assert cache.links([(0).to_bytes(16, "big")])[0].hashes == [0]
    assert not cache.links([(999).to_bytes(16, "big")])


def test_the_longest_unused_goes_first() -> None:
    """What was asked for lately is kept."""
    cache = TokenCache(10_000)
    keys = [number.to_bytes(16, "big") for number in range(200)]
    for number in range(200):
        cache.remember([(keys[number], Link([number], b"d"))])
        assert cache.links([keys[0]])
    assert not cache.links([keys[1]])


def test_a_huge_text_pushes_nothing_out() -> None:
    """An entry over an eighth of the bound is not kept."""
    cache = TokenCache(10_000)
    cache.remember([(b"a", Link([1], b"d"))])
    cache.encode(["x"], [b"b"], lambda pieces: [[1] * 1000])
    assert cache.links([b"a"])
    assert cache.used_bytes < 1_000


@pytest.mark.parametrize("ids", [[], [7], [7, 7], [0, 262_143], [1, 262_144], [2**32 - 1, 3]])
def test_any_ids_come_back(ids: list[int]) -> None:
    """None, one, and the largest that are possible: what was tokenised is what is found."""
    cache = TokenCache()
    first = cache.encode(["x"], [b"k"], lambda pieces: [ids])
    assert first == cache.encode(["x"], [b"k"], lambda pieces: []) == [array("I", ids)]


def test_ids_beyond_32_bits_are_a_reason() -> None:
    """A tokenizer with such ids is none that is understood."""
    with pytest.raises(NotUnderstoodError) as caught:
        TokenCache().encode(["x"], [b"k"], lambda pieces: [[2**40]])
    assert caught.value.reason is Reason.TOKENIZER_ERROR


def test_an_emptied_cache_changes_no_chain(folders: dict[str, Path]) -> None:
    """A cache so small that it forgets all the time gives the same chains."""
    text = load_text(folders["byte level"], Options(cache=TokenCache(20_000)))
    reader = PromptReader(lambda _: text)
    rng = random.Random(1)
    turns = [{"role": "user", "content": rng.choice("abc") * rng.randrange(400)} for _ in range(40)]
    for _ in range(100):
        start = rng.randrange(3)
        prompt = reader.read(CHAT, json.dumps({"messages": turns[start : rng.randrange(start + 1, 40)]}).encode())
        assert prompt.token_ids is not None
        assert prompt.chain(SCHEMES[0], None) == chain(prompt.token_ids, SCHEMES[0])


def test_threads_share_it(folders: dict[str, Path]) -> None:
    """Threads that read and forget at once get what one gets alone."""
    text = load_text(folders["byte level"], Options(cache=TokenCache(100_000)))
    alone = load_text(folders["byte level"], Options())
    bodies = [{"messages": [{"role": "user", "content": f"{n % 17} " * 90}] * (n % 9 + 1)} for n in range(400)]

    def read(reader: PromptReader, body: dict[str, Any]) -> list[int]:
        return reader.read(CHAT, json.dumps(body).encode()).chain(SCHEMES[0], None)

    expected = [read(PromptReader(lambda _: alone), body) for body in bodies]
    shared = PromptReader(lambda _: text)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda body: read(shared, body), bodies)) == expected


def test_prompts_given_as_ids() -> None:
    """Ids that were seen are not hashed into a chain again, and a change in any of them is seen."""
    cache = TokenCache()
    reader = PromptReader(lambda _: None, cache=cache)
    ids = list(range(5_000))
    for change in (None, 0, 700, 4_999):
        changed = ids if change is None else [*ids[:change], 77_777, *ids[change + 1 :]]
        prompt = reader.read("/v1/completions", json.dumps({"prompt": changed}).encode())
        assert prompt.trail is not None
        assert prompt.chain(SCHEMES[0], None) == chain(changed, SCHEMES[0])
    assert cache.used_bytes > 0


def test_other_extra_keys_have_other_links(folders: dict[str, Path]) -> None:
    """Salt and adapter of one request are not those of the next."""
    text = load_text(folders["byte level"], Options(cache=TokenCache()))
    body = json.dumps({"messages": [{"role": "user", "content": "the same words " * 50}]}).encode()
    prompt = PromptReader(lambda _: text).read(CHAT, body)
    assert prompt.token_ids is not None
    for salt in (None, "a", "b"):
        for lora in (None, Lora("a", "/a"), Lora("a", "/b")):
            salted = replace(prompt, salt=salt)
            expected = chain(prompt.token_ids, SCHEMES[0], ExtraKeys(lora=lora, salt=salt))
            assert salted.chain(SCHEMES[0], lora) == expected
