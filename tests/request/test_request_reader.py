"""PromptReader: every shape of request, and that it never raises."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.request.encoders.table import load
from router.request.model_text import ModelText
from router.request.prompt import Kind, Prompt
from router.request.reader import PromptReader
from router.request.reasons import Reason

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PATHS = [CHAT, COMPLETION, "/v1/responses", "/v1/messages", "/v1/embeddings", "/pooling"]
TINY = load(Path(__file__).parents[1] / "golden/tokenizer")
READER = PromptReader(lambda model: TINY if model in (None, "m", "adapter") else None)
IDS = list(range(1, 33))
USER = {"role": "user", "content": "hello"}


def _read(path: str, **body: Any) -> Prompt:
    return READER.read(path, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (CHAT, Kind.CHAT),
        (COMPLETION, Kind.COMPLETION),
        (COMPLETION + "?x=1", Kind.COMPLETION),
        ("/tokenize", Kind.OTHER),
    ],
)
def test_kind(path: str, kind: Kind) -> None:
    """The path says which API it is; a query string does not matter."""
    assert _read(path, model="m", prompt="x").kind is kind


def test_token_ids_are_taken_as_they_are() -> None:
    """A prompt of token ids is not tokenised again, and needs no tokenizer (HASH-12)."""
    assert _read(COMPLETION, model="unknown", prompt=IDS).token_ids == IDS


@pytest.mark.parametrize("prompt", [["a b c", "d"], "a b c"])
def test_the_first_of_several_texts(prompt: object) -> None:
    """Of a batch of texts the first is read (HASH-12)."""
    assert _read(COMPLETION, prompt=prompt).token_ids == TINY.encode("a b c", add_special_tokens=True)


def test_the_first_of_several_lists_of_ids() -> None:
    """Of a batch of ids the first is read; the others count as work (HASH-12)."""
    prompt = _read(COMPLETION, prompt=[IDS, list(range(5, 41))])
    assert (prompt.token_ids, prompt.tokens, prompt.other_tokens) == (IDS, 32, 36)


@pytest.mark.parametrize("prompt", ["", [], None])
def test_empty_prompts(prompt: object) -> None:
    """An empty prompt is forwarded with the reason empty: the engine answers it (HASH-12)."""
    assert _read(COMPLETION, prompt=prompt).reason is Reason.EMPTY


@pytest.mark.parametrize("prompt", [5, {}, [1, "a"], [[1], "a"], [[1], [-1]], [1.5], [True], [[], ["a"]], [2**70]])
def test_prompts_of_wrong_types(prompt: object) -> None:
    """A prompt that the engine answers with a 400 is bad_request."""
    assert _read(COMPLETION, prompt=prompt).reason is Reason.BAD_REQUEST


def test_truncation() -> None:
    """`truncate_prompt_tokens` keeps the last ids (HASH-12)."""
    assert _read(COMPLETION, prompt=IDS, truncate_prompt_tokens=16).token_ids == IDS[-16:]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(-1, Reason.UNSUPPORTED), (-2, Reason.BAD_REQUEST), ("x", Reason.BAD_REQUEST), (0, Reason.EMPTY)],
)
def test_truncation_that_is_not_followed(value: object, reason: Reason) -> None:
    """The model's own length is not known here, and some values are none."""
    assert _read(COMPLETION, prompt=IDS, truncate_prompt_tokens=value).reason is reason


def test_too_many_ids_are_not_hashed() -> None:
    """A list of ids that no engine takes is not worked on."""
    assert _read(COMPLETION, prompt=[1] * (2**21 + 1)).reason is Reason.TOO_LONG


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt_embeds": "AAAA"}, Reason.PROMPT_EMBEDS),
        ({"prompt_embeds": "AAAA", "prompt": "x"}, Reason.PROMPT_EMBEDS),
        ({"prompt": "x", "suffix": "y"}, Reason.UNSUPPORTED),
        ({"prompt": "x", "cache_salt": 5}, Reason.BAD_REQUEST),
        ({"prompt": "x", "model": "unknown"}, Reason.NO_TOKENIZER),
    ],
)
def test_completions_that_are_not_understood(fields: dict[str, Any], reason: Reason) -> None:
    """Each has its reason, and an estimate of its length."""
    prompt = _read(COMPLETION, **fields)
    assert (prompt.token_ids, prompt.reason) == (None, reason)
    assert prompt.tokens == len(json.dumps(fields)) // 4


def test_forwarded_ids_of_a_prefill_stage() -> None:
    """A chat whose ids come from a prefill stage is not followed."""
    prompt = _read(CHAT, messages=[USER], kv_transfer_params={"prompt_token_ids": [1, 2]})
    assert prompt.reason is Reason.UNSUPPORTED


def test_a_missing_model() -> None:
    """Without a model's name the application says which text to take; none: no_model."""
    assert _read(CHAT, messages=[USER]).reason is None
    none = PromptReader(lambda _: None)
    assert none.read(CHAT, json.dumps({"messages": [USER]}).encode()).reason is Reason.NO_MODEL


def test_an_adapters_name_is_passed_on() -> None:
    """The name of an adapter gets its base model's text, and stays the prompt's model."""
    prompt = _read(CHAT, model="adapter", messages=[USER])
    assert (prompt.model, prompt.reason) == ("adapter", None)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/audio/speech", Reason.ENDPOINT),
        ("/score", Reason.SCORING),
        ("/v1/score", Reason.SCORING),
        ("/v1/rerank", Reason.SCORING),
        ("/tokenize", Reason.NO_PROMPT),
        ("/v1/messages/count_tokens", Reason.NO_PROMPT),
    ],
)
def test_endpoints_without_a_known_prompt(path: str, reason: Reason) -> None:
    """Other APIs have their reason, with the model and the stream flag still read (HASH-12)."""
    prompt = _read(path, model="m", stream=True, input="hello", messages=[USER])
    assert (prompt.reason, prompt.model, prompt.stream, prompt.token_ids) == (reason, "m", True, None)


def test_what_computes_no_prompt_costs_nothing() -> None:
    """A text that is only tokenised is no work for the engine's batches."""
    assert _read("/tokenize", prompt="word " * 1000).tokens == 0


@pytest.mark.parametrize(("path", "reason"), [(CHAT, Reason.BAD_JSON), ("/v1/audio/transcriptions", Reason.ENDPOINT)])
def test_no_json(path: str, reason: Reason) -> None:
    """A body that is no JSON is bad_json where JSON is expected."""
    prompt = READER.read(path, b"--boundary\r\n" * 10)
    assert (prompt.reason, prompt.model, prompt.tokens) == (reason, None, 30)


@pytest.mark.parametrize(
    ("path", "fields", "reads"),
    [
        (COMPLETION, {"prompt_logprobs": 0}, False),
        (COMPLETION, {"prompt_logprobs": None}, True),
        (COMPLETION, {"logprobs": 3}, True),
        (COMPLETION, {"echo": True}, True),
        (COMPLETION, {"echo": True, "logprobs": 0}, False),
        (CHAT, {"prompt_logprobs": 1}, False),
        (CHAT, {"echo": True}, False),
        (CHAT, {"logprobs": True}, True),
    ],
)
def test_reads_cache(path: str, fields: dict[str, Any], reads: bool) -> None:
    """Asking for the prompt's logprobs keeps the engine from its cache; the chain is there all the same."""
    prompt = _read(path, prompt="x", messages=[USER], **fields)
    assert prompt.reads_cache is reads
    assert prompt.token_ids


def test_facts_for_placement() -> None:
    """Stream, usage, limits, salt and the number of answers are read."""
    prompt = _read(
        CHAT,
        model="m",
        messages=[USER],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
        max_completion_tokens=7,
        cache_salt="s",
        n=3,
    )
    assert (prompt.stream, prompt.include_usage, prompt.max_tokens, prompt.salt, prompt.n) == (True, True, 7, "s", 3)


def test_facts_that_are_missing() -> None:
    """What a body does not say is off, none, or one."""
    prompt = _read(COMPLETION, prompt="x", max_tokens=5)
    assert (prompt.stream, prompt.include_usage, prompt.max_tokens, prompt.salt, prompt.n) == (False, False, 5, None, 1)


def test_the_last_salt_holds() -> None:
    """Of two salts, one spelled with escapes, the last is hashed."""
    prompt = READER.read(COMPLETION, b'{"prompt":"x","cache_salt":"a","\\u0063ache_salt":"b"}')
    assert prompt.salt == "b"


def test_utf16_bodies() -> None:
    """A body in UTF-16 gives the same prompt."""
    body = json.dumps({"prompt": "grüße"}, ensure_ascii=False)
    assert READER.read(COMPLETION, body.encode("utf-16")).token_ids == READER.read(COMPLETION, body.encode()).token_ids


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "function", "name"]), inner, max_size=4)
    ),
    max_leaves=8,
)
fields = st.sampled_from(
    [
        "model",
        "prompt",
        "messages",
        "tools",
        "documents",
        "stream",
        "stream_options",
        "cache_salt",
        "n",
        "max_tokens",
        "echo",
        "logprobs",
        "suffix",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "truncation_side",
        "add_special_tokens",
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "chat_template_kwargs",
        "reasoning_effort",
        "kv_transfer_params",
        "prompt_embeds",
        "input",
        "instructions",
        "system",
        "reasoning",
        "thinking",
        "output_config",
        "task",
        "truncation",
    ]
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"]), "content": odd},
    optional={"tool_calls": odd, "reasoning_content": odd, "name": odd, "tools": odd, "tool_call_id": odd},
)


item = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "tool_use", "image"]),
        "content": odd
        | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "tool_result", "image_url"])})),
    },
    optional={"role": odd, "call_id": odd, "name": odd, "arguments": odd, "output": odd, "summary": odd, "input": odd},
)


def _check(prompt: Prompt) -> None:
    assert (prompt.token_ids is None) == (prompt.reason is not None) or prompt.reason is Reason.MEDIA
    assert prompt.reason is not Reason.INTERNAL


@given(st.sampled_from([*PATHS, "/x"]), st.dictionaries(fields, odd, max_size=6))
def test_any_field_may_be_anything(path: str, body: dict[str, Any]) -> None:
    """Whatever a client puts into the fields that are read, the result is ids or a known reason."""
    _check(READER.read(path, json.dumps(body).encode()))


@given(st.sampled_from(PATHS), st.lists(message | item, max_size=4), st.dictionaries(fields, odd, max_size=2))
def test_any_message_may_be_anything(path: str, messages: list[Any], body: dict[str, Any]) -> None:
    """Whatever a client puts into messages or items, the result is ids or a known reason."""
    _check(READER.read(path, json.dumps({**body, "messages": messages, "input": messages}).encode()))


@settings(deadline=None)
@given(st.sampled_from([CHAT, COMPLETION, "/x", "", "?"]), st.binary(max_size=100))
def test_any_bytes(path: str, body: bytes) -> None:
    """Any bytes on any path give a prompt."""
    _check(READER.read(path, body))


def test_deeply_nested_bodies() -> None:
    """Nesting as deep as the parser lets through is no crash anywhere after it."""
    for depth in (200, 900, 1020, 100_000):
        nested = b"[" * depth + b"]" * depth
        for field in (b"messages", b"prompt", b"tools", b"chat_template_kwargs"):
            _check(READER.read(CHAT, b'{"messages":[{"role":"user","content":"x"}],"' + field + b'":' + nested + b"}"))
            _check(READER.read(COMPLETION, b'{"' + field + b'":' + nested + b"}"))


def test_a_fault_of_the_router_is_a_reason() -> None:
    """If the router itself fails on a request, the request goes on with the reason internal."""

    def broken(model: str | None) -> ModelText | None:
        raise RuntimeError(model)

    assert PromptReader(broken).read(COMPLETION, b'{"prompt":"x"}').reason is Reason.INTERNAL


def test_threads_do_not_disturb_each_other() -> None:
    """Reads in several threads at once give what they give one after another."""
    bodies = [
        json.dumps({"messages": [{"role": "user", "content": f"count to {i} " * (i % 40 + 1)}]}).encode()
        for i in range(300)
    ]
    alone = [READER.read(CHAT, body).token_ids for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda body: READER.read(CHAT, body).token_ids, bodies))
    assert together == alone
