"""Whole bodies read before: the same prompt as afresh, never a former text's, bounded with the rest of the cache."""

from __future__ import annotations

import gc
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.kv.extra_keys import ExtraKeys, Lora
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders.table import Options, load_text
from router.request.model_text import ModelText
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.request.text import Text
from router.request.token_cache import TokenCache

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SCHEME, OTHER = Scheme(HashAlgorithm.SHA256_CBOR, 16), Scheme(HashAlgorithm.SHA256_CBOR, 4, "9")
ADAPTER = Lora("ad", "/adapters/ad")


def _text(cache: TokenCache | None, template: Path | None = None, **options: Any) -> ModelText:
    text = load_text(GOLDEN, Options(cache=cache, template_file=template, **options))
    assert isinstance(text, ModelText)
    return text


def _reader(cache: TokenCache) -> PromptReader:
    text = _text(cache)
    return PromptReader(lambda _: text, cache=cache)


def _body(content: str = "hello " * 200, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **fields}).encode()


def _alike(one: Prompt, other: Prompt) -> None:
    assert one == other
    assert one.chain(SCHEME, None) == other.chain(SCHEME, None)


BODIES = st.builds(
    lambda content, kind, fields: (
        (CHAT, _body(content, **fields))
        if kind == "chat"
        else (
            COMPLETION,
            json.dumps({"model": "m", "prompt": [len(content)] * 99 if kind == "ids" else content} | fields).encode(),
        )
    ),
    st.text(max_size=300),
    st.sampled_from(("chat", "text", "ids")),
    st.fixed_dictionaries(
        {},
        optional={
            "stream": st.booleans(),
            "max_tokens": st.integers(1, 9),
            "cache_salt": st.sampled_from(("a", "b", "")),
            "truncate_prompt_tokens": st.integers(1, 20),
            "n": st.integers(1, 3),
            "prompt_logprobs": st.just(1),
            "tools": st.just([{"type": "function", "function": {"name": "f"}}]),
            "messages": st.just("no messages"),
        },
    ),
)


@given(st.lists(BODIES, min_size=1, max_size=6), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_a_prompt_read_before_is_the_prompt_read_afresh(requests: list[tuple[str, bytes]], size: int) -> None:
    """Whatever the body and however small the cache: all is as a reader that knows nothing has it."""
    cache = TokenCache((3_000, 20_000, 1 << 20)[size])
    reader, afresh = _reader(cache), PromptReader(lambda _: TEXT)
    for path, body in requests * 2:
        expected = afresh.read(path, body)
        for prompt in (reader.quick(path, body, 0), reader.quick(path, body, 1 << 20), reader.read(path, body)):
            if prompt is not None:
                _alike(prompt, expected)
        assert cache.used_bytes <= cache.limit_bytes


TEXT = _text(None)


def test_a_body_that_was_read_is_not_read_again() -> None:
    """Nothing is parsed, rendered or tokenised: the second request is a hit, however little may be done for it."""
    reader = _reader(TokenCache())
    assert reader.quick(CHAT, _body(), 0) is None
    first = reader.read(CHAT, _body())
    again = reader.quick(CHAT + "?x=1", _body(), 0)
    assert again == first
    assert (reader.memo.hits, reader.memo.misses) == (1, 1)


def test_other_bytes_or_another_path_are_another_body() -> None:
    """One byte makes a difference, and so does the endpoint."""
    reader = _reader(TokenCache())
    reader.read(CHAT, _body())
    assert reader.quick(CHAT, _body() + b" ", 0) is None
    assert reader.quick("/v1/messages", _body(), 0) is None


def test_each_request_has_its_own_prompt_and_they_share_chains() -> None:
    """What one request makes of its prompt does not reach another; what was hashed for one is there for all."""
    reader = _reader(TokenCache())
    first = reader.read(CHAT, _body())
    hashes = first.chain(SCHEME, None)
    second = reader.quick(CHAT, _body(), 0)
    third = reader.quick(CHAT, _body(), 0)
    assert second is not None
    assert third is not None
    assert second.chain(SCHEME, None) is hashes
    second.salt, second.token_ids = "tenant", None
    assert (third.salt, third.token_ids) == (None, first.token_ids)
    third.salt = "another"
    assert third.token_ids is not None
    assert third.chain(SCHEME, None) == chain(third.token_ids, SCHEME, ExtraKeys(salt="another"))
    assert third.chain(OTHER, ADAPTER) == chain(third.token_ids, OTHER, ExtraKeys(lora=ADAPTER, salt="another"))


def test_a_text_that_was_replaced_answers_no_more(tmp_path: Path) -> None:
    """Another template or tokenizer means reading again, and so does none."""
    cache = TokenCache()
    other = tmp_path / "t.jinja"
    other.write_text("{% for m in messages %}<|im_start|>other {{ m.content }}{% endfor %}")
    texts: dict[str | None, Text | None] = {"m": _text(cache)}
    reader = PromptReader(lambda name: texts.get(name), cache=cache)
    before = reader.read(CHAT, _body())
    texts["m"] = changed = _text(cache, other)
    assert reader.quick(CHAT, _body(), 0) is None
    after = reader.read(CHAT, _body())
    assert after.token_ids == changed.encode(changed.render_chat(json.loads(_body())), add_special_tokens=False)
    assert after.token_ids != before.token_ids
    texts["m"] = None
    assert reader.quick(CHAT, _body(), 0) is None


@pytest.mark.parametrize("word", ["strftime_now('%H:%M:%S')", "range(99999) | random", "lipsum(1)"])
def test_a_template_that_asks_for_time_or_chance_is_rendered_each_time(tmp_path: Path, word: str) -> None:
    """Such a prompt depends on more than its body."""
    cache = TokenCache()
    file = tmp_path / "t.jinja"
    file.write_text("{{ " + word + " }}{% for m in messages %}{{ m.content }}{% endfor %}")
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    text = _text(cache, file, clock=lambda: now[0])
    reader = PromptReader(lambda _: text, cache=cache)
    first = reader.read(CHAT, _body())
    now[0] = now[0].replace(second=59)
    assert reader.quick(CHAT, _body(), 0) is None
    assert reader.read(CHAT, _body()).token_ids != first.token_ids


@pytest.mark.parametrize(
    "fields", [{"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 8}, {"chat_template": "x"}]
)
def test_what_depends_on_the_fleet_or_another_process_is_not_kept(fields: dict[str, Any]) -> None:
    """A model's length can change with its replicas."""
    text = _text(cache := TokenCache())
    reader = PromptReader(lambda _: text, lambda _: 100, cache)
    reader.read(CHAT, _body(**fields))
    assert reader.quick(CHAT, _body(**fields), 0) is None


def test_chains_that_are_kept_are_counted() -> None:
    """What a prompt's chains take is part of the bound, under however many schemes they are asked for."""
    cache = TokenCache()
    reader = _reader(cache)
    prompt = reader.read(CHAT, _body("word " * 2_000))
    before = cache.used_bytes
    links = sum(len(prompt.chain(Scheme(HashAlgorithm.SHA256_CBOR, 16, str(seed)), None)) for seed in range(40)) * 44
    assert cache.used_bytes - before >= 2 * links
    assert len(prompt.chains) <= 16


def test_a_long_body_is_read_at_once_when_little_of_it_is_new() -> None:
    """A conversation's next turn is no work for a thread; a body of new text is."""
    reader = _reader(TokenCache())
    turns = [{"role": "user", "content": f"{number} " * 300} for number in range(20)]
    bodies = [json.dumps({"model": "m", "messages": turns[:count]}).encode() for count in (19, 20)]
    assert reader.quick(CHAT, bodies[0], 4_096) is None
    whole = reader.read(CHAT, bodies[0])
    assert whole.token_ids is not None
    nearly = reader.quick(CHAT, bodies[1], 4_096)
    assert nearly is not None
    assert nearly == PromptReader(lambda _: TEXT).read(CHAT, bodies[1])
    assert reader.quick(COMPLETION, json.dumps({"model": "m", "prompt": list(range(9_000))}).encode(), 4_096) is None


def test_what_is_forgotten_frees_its_memory_at_once() -> None:
    """No cycle keeps a prompt that found no room: old objects are seldom looked through."""
    reader = _reader(TokenCache(200_000))
    gc.collect()
    gc.disable()
    try:
        for number in range(100):
            reader.read(CHAT, _body(f"{number} " * 500)).chain(SCHEME, None)
        assert gc.collect() == 0
    finally:
        gc.enable()
