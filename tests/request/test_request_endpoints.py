"""Responses, messages, embeddings and Mistral's chats, against what the engine's library made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.request.encoders.table import Options, load_text
from router.request.prompt import Kind
from router.request.reader import PromptReader
from router.request.reasons import Reason
from router.request.text import Text
from router.request.token_cache import TokenCache

GOLDEN = Path(__file__).parents[1] / "golden"
RECORD = json.loads((GOLDEN / "endpoints.json").read_text(encoding="utf-8"))
TEMPLATES = json.loads((GOLDEN / "rendering.json").read_text(encoding="utf-8"))["templates"]
PATHS = {"responses": "/v1/responses", "messages": "/v1/messages", "embeddings": "/v1/embeddings"}


def _answered(kind: str) -> list[Any]:
    return [
        pytest.param(item, id=f"{item['template']}-{place}")
        for place, item in enumerate(RECORD[kind])
        if "token_ids" in item
    ]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Text]:
    """A model's text for each template of the record."""
    made = {}
    for name, source in TEMPLATES.items():
        file = tmp_path_factory.mktemp("template") / f"{name}.jinja"
        file.write_text(source, encoding="utf-8")
        made[name] = load_text(GOLDEN / "tokenizer", Options(template_file=file, cache=TokenCache()))
    return made


def _check(path: str, item: dict[str, Any], text: Text) -> None:
    prompt = PromptReader(lambda _: text).read(path, json.dumps(item["body"]).encode())
    assert (prompt.token_ids, prompt.reason) == (item["token_ids"], None)


@pytest.mark.parametrize("item", _answered("responses"))
def test_responses(item: dict[str, Any], texts: dict[str, Text]) -> None:
    """Items, instructions, tools and reasoning give the engine's ids."""
    _check("/v1/responses", item, texts[item["template"]])


@pytest.mark.parametrize("item", _answered("messages"))
def test_messages(item: dict[str, Any], texts: dict[str, Text]) -> None:
    """Blocks, tool results, inline system prompts and thinking give the engine's ids."""
    _check("/v1/messages", item, texts[item["template"]])


@pytest.mark.parametrize("item", _answered("embeddings"))
def test_embeddings(item: dict[str, Any], texts: dict[str, Text]) -> None:
    """Texts, ids and chats to embed give the engine's ids; of several the first."""
    item = dict(item)
    if isinstance(item["token_ids"][0], list):
        item["token_ids"] = item["token_ids"][0]
    _check("/v1/embeddings", item, texts[item["template"]])


@pytest.mark.parametrize("kind", list(PATHS))
def test_what_the_engine_refuses_is_no_fault(kind: str, texts: dict[str, Text]) -> None:
    """A body that the engine answers with a 400 gets ids or a reason, and never `internal`."""
    for item in RECORD[kind]:
        prompt = PromptReader(lambda _, name=item["template"]: texts[name]).read(
            PATHS[kind], json.dumps(item["body"]).encode()
        )
        assert prompt.reason is not Reason.INTERNAL


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, Reason.ENGINE_STATE),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, Reason.UNSUPPORTED),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}, Reason.UNSUPPORTED),
        ("/v1/responses", {"input": 5}, Reason.BAD_REQUEST),
        ("/v1/messages", {"messages": "x"}, Reason.BAD_REQUEST),
        ("/v1/embeddings", {"input": "x", "padding": "max_length"}, Reason.UNSUPPORTED),
        ("/pooling", {"data": {"x": 1}}, Reason.UNSUPPORTED),
    ],
)
def test_what_is_not_followed(path: str, fields: dict[str, Any], reason: Reason, texts: dict[str, Text]) -> None:
    """Each has its reason."""
    prompt = PromptReader(lambda _: texts["chatml"]).read(path, json.dumps(fields).encode())
    assert (prompt.token_ids, prompt.reason) == (None, reason)


@pytest.mark.parametrize(
    ("path", "task", "reads"),
    [
        ("/v1/embeddings", None, True),
        ("/classify", None, True),
        ("/pooling", "embed", True),
        ("/pooling", "classify", True),
        ("/pooling", "token_embed", False),
        ("/pooling", "token_classify", False),
        ("/pooling", None, False),
    ],
)
def test_pooling_over_all_tokens_reads_nothing(
    path: str, task: str | None, reads: bool, texts: dict[str, Text]
) -> None:
    """A vector for each token needs each token computed; its blocks are stored all the same."""
    body = {"input": "the import system"} | ({} if task is None else {"task": task})
    prompt = PromptReader(lambda _: texts["chatml"]).read(path, json.dumps(body).encode())
    assert (prompt.kind, prompt.reads_cache) == (Kind.POOLING, reads)
    assert prompt.token_ids


@pytest.mark.parametrize(
    ("path", "fields", "length", "kept"),
    [
        ("/v1/completions", {"prompt": list(range(50)), "max_tokens": 5}, 20, list(range(31, 50))),
        ("/v1/completions", {"prompt": list(range(50))}, 20, list(range(30, 50))),
        ("/v1/embeddings", {"input": list(range(50))}, 20, list(range(20))),
    ],
)
def test_truncation_to_the_models_length(
    path: str, fields: dict[str, Any], length: int, kept: list[int], texts: dict[str, Text]
) -> None:
    """`truncate_prompt_tokens: -1` is the model's length where it is known, less one where an answer has a limit."""
    body = json.dumps({**fields, "truncate_prompt_tokens": -1}).encode()
    assert PromptReader(lambda _: texts["chatml"], lambda _: length).read(path, body).token_ids == kept
    assert PromptReader(lambda _: texts["chatml"]).read(path, body).reason is Reason.UNSUPPORTED


def test_truncation_of_responses(texts: dict[str, Text]) -> None:
    """`truncation: auto` of a response is the same as -1."""
    body = {"input": "one two three " * 30, "truncation": "auto"}
    whole = PromptReader(lambda _: texts["chatml"]).read("/v1/responses", json.dumps({"input": body["input"]}).encode())
    cut = PromptReader(lambda _: texts["chatml"], lambda _: 16).read("/v1/responses", json.dumps(body).encode())
    assert whole.token_ids is not None
    assert cut.token_ids == whole.token_ids[-16:]


def test_facts_of_other_apis(texts: dict[str, Text]) -> None:
    """Limits under their own names; streams that always tell their usage."""
    reader = PromptReader(lambda _: texts["chatml"])
    prompt = reader.read("/v1/responses", b'{"input": "x", "max_output_tokens": 7, "stream": true, "cache_salt": "s"}')
    assert (prompt.max_tokens, prompt.include_usage, prompt.salt, prompt.kind) == (7, True, "s", Kind.CHAT)
    prompt = reader.read("/v1/messages", b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}')
    assert (prompt.max_tokens, prompt.include_usage, prompt.kind) == (9, True, Kind.CHAT)


@pytest.fixture(scope="module")
def mistral() -> dict[str, Text]:
    """Mistral's own tokenizers, as the package ships them."""
    package = pytest.importorskip("mistral_common")
    data = Path(package.__file__).parent / "data"
    files = sorted({item["file"] for item in RECORD["mistral"]})
    return {file: load_text(data / file, Options(cache=TokenCache())) for file in files}


@pytest.mark.parametrize("place", range(len(RECORD["mistral"])))
def test_mistral(place: int, mistral: dict[str, Text]) -> None:
    """Chats and texts give the engine's ids with SentencePiece and with tekken, afresh and looked up."""
    item = RECORD["mistral"][place]
    reader = PromptReader(lambda _: mistral[item["file"]])
    for _ in range(2):
        prompt = reader.read(item["endpoint"], json.dumps(item["body"]).encode())
        assert prompt.reason is not Reason.INTERNAL
        assert prompt.token_ids == item.get("token_ids")


def test_the_engines_default_variables(tmp_path: Path) -> None:
    """`--default-chat-template-kwargs` stand behind a request's own, in chats and responses but not in pooling."""
    (tmp_path / "t.jinja").write_text("{{ a | default('-') }}{{ b | default('-') }}{{ messages[0].content }}")
    text = load_text(GOLDEN / "tokenizer", Options(template_file=tmp_path / "t.jinja", defaults={"a": 1, "b": 2}))
    user = [{"role": "user", "content": "x"}]
    for path, body, printed in (
        ("/v1/chat/completions", {"messages": user}, "12x"),
        ("/v1/chat/completions", {"messages": user, "chat_template_kwargs": {"b": 3, "a": None}}, "13x"),
        ("/v1/responses", {"input": "x", "chat_template_kwargs": {"b": 3}}, "13x"),
        ("/v1/messages", {"messages": user}, "12x"),
        ("/v1/embeddings", {"messages": user}, "--x"),
    ):
        prompt = PromptReader(lambda _: text).read(path, json.dumps(body).encode())
        assert prompt.token_ids == text.encode(printed, add_special_tokens=False), path


def test_special_tokens_on_one_api_and_not_the_other(tmp_path: Path) -> None:
    """A tokenizer's BOS: added to texts and responses, not to chats and messages."""
    tokenizer = json.loads((GOLDEN / "tokenizer/tokenizer.json").read_text(encoding="utf-8"))
    record = json.loads((GOLDEN / "rendering.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"] = record["bos_post_processor"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    text = load_text(tmp_path, Options())
    user = [{"role": "user", "content": "hello"}]
    bare, around = text.encode("hello", add_special_tokens=False), text.encode("hello", add_special_tokens=True)
    assert around == [0, *bare, 2]
    for path, body, expected in (
        ("/v1/completions", {"prompt": "hello"}, around),
        ("/v1/embeddings", {"input": "hello"}, around),
        ("/v1/responses", {"input": "hello"}, around),
        ("/v1/chat/completions", {"messages": user}, bare),
        ("/v1/messages", {"messages": user}, bare),
        ("/v1/embeddings", {"messages": user}, bare),
    ):
        assert PromptReader(lambda _: text).read(path, json.dumps(body).encode()).token_ids == expected, path
