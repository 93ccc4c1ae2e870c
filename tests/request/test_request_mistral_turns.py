"""Mistral's chats by messages against mistral-common afresh, for every version of its encoding that is followed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.request.encoders import mistral_turns
from router.request.encoders.mistral import MistralText
from router.request.messages import tools as tools_as_handed_on
from router.request.reasons import NotUnderstoodError
from router.request.token_cache import TokenCache
from router.request.tokens import Keep, Tokens, TooMuchFreshError

package = pytest.importorskip("mistral_common")
DATA = Path(package.__file__).parent / "data"
TEKKEN_VERSIONS = ("v3", "v7", "v11", "v13")
SENTENCEPIECE = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
)
VOCABULARY = 1_200


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each kind: SentencePiece's, and a tekken of a small vocabulary for each version."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    folder = tmp_path_factory.mktemp("mistral")
    whole = json.loads((DATA / "tekken_240911.json").read_text(encoding="utf-8"))
    special = [{"rank": rank, "token_str": token.value, "is_control": True} for rank, token in enumerate(SpecialTokens)]
    found = {name: DATA / name for name in SENTENCEPIECE}
    for version in TEKKEN_VERSIONS:
        sizes = {"default_vocab_size": VOCABULARY + 100, "default_num_special_tokens": 100}
        config = {**whole["config"], **sizes, "num_vocab_tokens": VOCABULARY, "version": version}
        found[version] = folder / version / "tekken.json"
        found[version].parent.mkdir()
        small = {**whole, "vocab": vocabulary(whole["vocab"]), "special_tokens": special, "config": config}
        found[version].write_text(json.dumps(small), encoding="utf-8")
    return found


def vocabulary(whole: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a tekken's bytes, pairs across the end of a line, and some tokens: a cut inside of a word changes ids."""
    pairs = [f"{a}{b}" for a in "\n .1a/" for b in "\n\t /.1a" if "\n" in a + b]
    texts = dict.fromkeys(pair.encode() for pair in pairs)
    texts |= dict.fromkeys(base64.b64decode(entry["token_bytes"]) for entry in whole[256:VOCABULARY])
    known = whole[:256] + [
        {"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
        for rank, text in enumerate(texts, 256)
    ]
    return known[:VOCABULARY]


@pytest.fixture(scope="module", params=(*SENTENCEPIECE, *TEKKEN_VERSIONS))
def pair(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[tuple[MistralText, Any]]:
    """Ours with a cache, and the package's own."""
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mistral_turns, "_MIN_PIECE_CHARS", 1)
        yield MistralText(files[request.param], TokenCache()), MistralTokenizer.from_file(str(files[request.param]))


TEXTS = st.text(st.sampled_from("aZé1 \n\r\t/(.'\u2028漢👍"), min_size=1, max_size=40) | st.sampled_from(
    [" ", "a ", "[INST] x [/INST]", "</s>", "one\ntwo\n  three\n/four\n\n5", ""]
)
TOOL = {"type": "function", "function": {"name": "weather", "description": "d\ne", "parameters": {"type": "object"}}}


@st.composite
def chats(draw: st.DrawFn) -> dict[str, Any]:
    """A conversation, mostly plain; now and then with what is the package's to encode or refuse."""
    items: list[dict[str, Any]] = [{"role": "system", "content": draw(TEXTS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 3))):
        items += [{"role": "user", "content": draw(TEXTS)}, {"role": "assistant", "content": draw(TEXTS)}]
    items.append({"role": "user", "content": draw(TEXTS)})
    odd = draw(st.integers(0, 9))
    if odd == 0:
        items.insert(
            draw(st.integers(0, len(items))), {"role": draw(st.sampled_from(["user", "system"])), "content": "x"}
        )
    elif odd == 1:
        items[-1]["content"] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    elif odd == 2:
        items[0]["name"] = "bob"
    body: dict[str, Any] = {"messages": items}
    tools = draw(
        st.sampled_from([None, None, [], [TOOL], [TOOL, TOOL], [{"type": "function", "function": {"name": "!"}}]])
    )
    return body if tools is None else {**body, "tools": tools}


def afresh(tokenizer: Any, body: dict[str, Any]) -> list[int] | None:
    """Return the package's own ids; None where it refuses."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest

    items = [{**item, "tool_calls": []} if item["role"] == "assistant" else item for item in body["messages"]]
    try:
        request = ChatCompletionRequest.from_openai(items, tools=body.get("tools"))
        return list(tokenizer.encode_chat_completion(request).tokens)
    except Exception:  # of many kinds
        return None


def ours(text: MistralText, body: dict[str, Any]) -> list[int] | None:
    """Return our ids; None where there are none."""
    try:
        return [*text.chat(body, add_special_tokens=False).ids]
    except NotUnderstoodError:
        return None


@settings(max_examples=15)
@given(body=chats())
def test_chats_are_the_packages(pair: tuple[MistralText, Any], body: dict[str, Any]) -> None:
    """Each turn of a conversation as it grows, with what was kept of those before, and once more."""
    text, tokenizer = pair
    items = body["messages"]
    for end in [*(place + 1 for place, item in enumerate(items) if item["role"] == "user"), len(items)]:
        part = {**body, "messages": items[:end]}
        expected = afresh(tokenizer, part)
        assert ours(text, part) == expected
        assert ours(text, part) == expected


@pytest.mark.parametrize("version", ["mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model.v1"])
def test_a_system_prompt_that_spells_tools_is_not_taken_for_them(files: dict[str, Path], version: str) -> None:
    """Both go into the same message's ids, which are kept: for one of the two they would be the other's."""
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    text, tokenizer = MistralText(files[version], TokenCache()), MistralTokenizer.from_file(str(files[version]))
    spelled = orjson.dumps(tools_as_handed_on([TOOL])).decode()
    user = {"role": "user", "content": "hi"}
    for body in (
        {"messages": [{"role": "system", "content": spelled}, user]},
        {"messages": [user], "tools": [TOOL]},
    ):
        assert ours(text, body) == afresh(tokenizer, body)


def test_the_next_turn_encodes_its_new_message_alone(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that the tokenizer is asked for: the whole conversation's first, then the new message's."""
    text = MistralText(files["v7"], TokenCache())
    items = [{"role": "system", "content": "Be brief."}]
    for number in range(5):
        items += [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": f"so {number}"}]
    asked: list[str] = []
    encode = text._encode

    def noted(s: str, bos: bool, eos: bool) -> list[int]:
        asked.append(s)
        return encode(s, bos, eos)

    monkeypatch.setattr(text, "_encode", noted)
    text.chat({"messages": [*items, {"role": "user", "content": "first"}]}, False)
    assert len(asked) == 12
    asked.clear()
    text.chat({"messages": [*items, {"role": "user", "content": "second"}]}, False)
    assert asked == ["second"]


def test_what_is_known_is_told_and_too_much_is_left(files: dict[str, Path]) -> None:
    """A draft of the messages before; work past what may be done at once is refused; truncation keeps the end."""
    text = MistralText(files["v7"], TokenCache())
    known = [{"role": "user", "content": "a" * 50}, {"role": "assistant", "content": "b" * 50}]
    body = {"messages": [*known, {"role": "user", "content": "c" * 50}]}
    with pytest.raises(TooMuchFreshError):
        text.chat(body, False, Keep(fresh_bytes=149))
    before = text.chat({"messages": [*known, {"role": "user", "content": "d"}]}, False, Keep(fresh_bytes=101))
    drafts: list[Tokens] = []
    whole = text.chat(body, False, Keep(fresh_bytes=50, known=drafts.append))
    [draft] = drafts
    assert 0 < len(draft.ids) < len(whole.ids)
    assert [*whole.ids[: len(draft.ids)]] == [*draft.ids] == [*before.ids[: len(draft.ids)]]
    assert [*text.chat(body, False, Keep(7)).ids] == [*whole.ids[-7:]]


@settings(max_examples=30)
@given(text=TEXTS)
@example("so.\n/and")
@example("so.\n /and")
@example("so. \n \n\n  \t and")
@example("so\n\u2028and\n\n1")
def test_lines_are_cut_where_the_tokenizer_cuts(pair: tuple[MistralText, Any], text: str) -> None:
    """Texts, with special tokens and without."""
    mine, tokenizer = pair
    for special in (False, True):
        expected = tokenizer.instruct_tokenizer.tokenizer.encode(text, special, False)
        assert mine.encode(text, add_special_tokens=special) == expected
