"""Record what the engine's own library makes of `/v1/responses`, `/v1/messages`, embeddings and Mistral's chats.

Run it with the Python of a vLLM 0.32 installation; it writes endpoints.json beside this file:

    python tests/golden/make_endpoints.py

It adds to make_rendering.py, from which it takes the engine's parts and the templates. Mistral's tokenizers are those
in the wheel of mistral-common.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from make_rendering import CALL, HERE, TEMPLATES, Engine  # sets the environment before the engine is imported

TEXT = [{"type": "input_text", "text": "How are"}, {"type": "input_text", "text": "you?"}]
TOOL = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}
CALL_ITEM = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"place": "Zürich"}',
    "id": "fc",
}
RESPONSES: list[dict[str, Any]] = [
    {"input": "hello"},
    {"input": "hello", "instructions": "Be brief."},
    {"input": [{"role": "user", "content": "hello", "name": "dropped"}], "reasoning": {"effort": "low"}},
    {"input": [{"role": "developer", "content": "d"}, {"type": "message", "role": "user", "content": TEXT}]},
    {
        "input": [
            {"role": "user", "content": "weather?"},
            CALL_ITEM,
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        ],
        "tools": [TOOL],
    },
    {
        "input": [
            {"role": "user", "content": "q"},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            CALL_ITEM,
            {**CALL_ITEM, "call_id": "c2"},
            {"role": "user", "content": "so"},
        ]
    },
    {
        "input": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "r"},
        ]
    },
    {
        "input": [
            {"role": "user", "content": "q"},
            {
                "type": "message",
                "role": "assistant",
                "status": "incomplete",
                "content": [{"type": "output_text", "text": "and so"}],
            },
        ]
    },
    {
        "input": [
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "sum"}]},
            {"role": "user", "content": "q"},
        ]
    },
    {"input": "x", "chat_template_kwargs": {"foo": "bar", "enable_thinking": False}, "reasoning": {"effort": "high"}},
    {"input": "x", "tools": [TOOL], "tool_choice": "none"},
    {"input": "x", "tools": [{**TOOL, "strict": None, "description": None}]},
    {
        "input": [
            {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}
        ]
    },
    {"input": []},
]
USER_BLOCKS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Zürich", "at": [1, 2.5, None]}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "toolu_1",
    "content": [{"type": "text", "text": "sunny"}, {"type": "text", "text": "warm"}],
}
ANTHROPIC_TOOL = {"name": "weather", "description": "d", "input_schema": {"properties": {"place": {"type": "string"}}}}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: 1234"}
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hello"}]},
    {"messages": [{"role": "user", "content": USER_BLOCKS}], "system": "Be brief."},
    {
        "messages": [{"role": "user", "content": [USER_BLOCKS[0]]}],
        "system": [BILLING, {"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}],
    },
    {
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "a"},
                    USE,
                ],
            },
            {"role": "user", "content": [RESULT, {"type": "text", "text": "and?"}]},
        ],
        "tools": [ANTHROPIC_TOOL],
    },
    {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [RESULT]},
            {"role": "assistant", "content": "so"},
        ]
    },
    {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "system", "content": "inline"},
            {"role": "user", "content": "r"},
        ],
        "system": "first",
    },
    {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "system", "content": [BILLING, {"type": "text", "text": "kept"}]},
        ]
    },
    {"messages": [{"role": "user", "content": "q"}], "thinking": {"type": "disabled"}},
    {"messages": [{"role": "user", "content": "q"}], "thinking": {"type": "enabled", "budget_tokens": 2000}},
    {
        "messages": [{"role": "user", "content": "q"}],
        "output_config": {"effort": "high"},
        "chat_template_kwargs": {"foo": 1},
    },
    {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        ]
    },
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{**RESULT, "content": "odd"}]}]},
    {
        "messages": [
            {"role": "user", "content": [{**RESULT, "content": [{"type": "tool_reference", "tool_name": "weather"}]}]}
        ],
        "tools": [{**ANTHROPIC_TOOL, "strict": True, "defer_loading": True}],
    },
    {"messages": [{"role": "tool", "content": "q"}]},
]
EMBEDDINGS: list[dict[str, Any]] = [
    {"input": "the import system loads"},
    {"input": ["the import", "system"]},
    {"input": [5, 6, 7, 8]},
    {"input": [[5, 6, 7], [8]]},
    {"input": "the import system loads", "add_special_tokens": False},
    {"input": "the import system loads modules", "truncate_prompt_tokens": 3},
    {"input": "the import system loads modules", "truncate_prompt_tokens": 3, "truncation_side": "left"},
    {"input": [5, 6, 7, 8], "truncate_prompt_tokens": 2},
    {"messages": [{"role": "user", "content": "hello"}]},
    {"messages": [{"role": "user", "content": "hello"}], "add_generation_prompt": True, "add_special_tokens": True},
    {"messages": [[{"role": "user", "content": "hello"}], [{"role": "user", "content": "you"}]]},
    {"input": [{"role": "user", "content": "hello"}]},
]
SHORT_CALL = {**CALL, "id": "call_abcdefghijk"}
MISTRAL: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hello"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüezi <s>[INST] 漢字"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]},
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
    },
    {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {
        "messages": [{"role": "user", "content": "w?"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
            }
        ],
    },
    {
        "messages": [
            {"role": "user", "content": "w?"},
            {"role": "assistant", "content": None, "tool_calls": [SHORT_CALL]},
            {"role": "tool", "tool_call_id": "call_abcdefghijk", "content": "sunny"},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "t"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
        ],
    },
    {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": 1}},
    {"messages": [{"role": "user", "content": "a b c d e f"}], "truncate_prompt_tokens": 3},
    {"messages": [{"role": "user", "content": "a"}], "reasoning_effort": "high"},
]
MISTRAL_TEXTS: list[dict[str, Any]] = [
    {"prompt": "hello [INST] world"},
    {"prompt": "hello world", "add_special_tokens": False},
    {"prompt": "one two three four five", "truncate_prompt_tokens": 3},
    {"prompt": "one two three four five", "truncate_prompt_tokens": 3, "truncation_side": "left"},
]
MISTRAL_FILES = (
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_241114.model.v7",
    "tekken_240911.json",
)


def _chat(engine: Engine, request: Any, messages: list[Any], template: str, tools: Any) -> str:
    """Do what OnlineRenderer.preprocess_chat and HfRenderer.render_messages do."""
    from vllm.renderers.chat_utils import parse_chat_messages
    from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template

    defaults = {"tokenize": False} if tools is None else {"tokenize": False, "tools": tools}
    params = request.build_chat_params(template, "auto").with_defaults(defaults)
    content_format = resolve_chat_template_content_format(
        chat_template=params.chat_template,
        tools=params.chat_template_kwargs.get("tools"),
        given_format="auto",
        tokenizer=engine.tokenizer,
        model_config=engine.config,
    )
    conversation, _, _ = parse_chat_messages(messages, engine.config, content_format=content_format)
    return safe_apply_chat_template(
        engine.config, engine.tokenizer, conversation, **params.get_apply_chat_template_kwargs()
    )


def _record(body: dict[str, Any], template: str, make: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"template": template, "body": body}
    try:
        record |= make(copy.deepcopy(body), TEMPLATES[template])
    except Exception as error:
        record["refused"] = type(error).__name__
    return record


def _responses(engine: Engine) -> list[dict[str, Any]]:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts

    def make(body: dict[str, Any], template: str) -> dict[str, Any]:
        request = ResponsesRequest.model_validate(body)
        tools = construct_tool_dicts(request.tools, request.tool_choice)
        messages = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
        text = _chat(engine, request, messages, template, tools)
        return {"text": text, "token_ids": engine.token_ids(request, text)}

    return [_record(body, name, make) for name in TEMPLATES for body in RESPONSES]


def _messages(engine: Engine) -> list[dict[str, Any]]:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages as Serving
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    def effort(template: str) -> str:
        """Do what _probe_disabled_thinking_effort does."""

        def probe(value: str) -> str | None:
            request = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=value)
            try:
                return _chat(engine, request, request.messages, template, None)
            except Exception:
                return None

        without = probe("none")
        same = any(probe(value) == without for value in ("low", "medium", "high", "xhigh", "max"))
        return "low" if without is None or same else "none"

    def make(body: dict[str, Any], template: str) -> dict[str, Any]:
        request = AnthropicMessagesRequest.model_validate({"model": "m", "max_tokens": 5, **body})
        merge = Serving._detect_merge_inline_system(template)
        chat = Serving.to_chat_completion_request(
            request, merge_inline_system=merge, disabled_thinking_effort=effort(template)
        )
        tools = None if chat.tools is None else [tool.model_dump() for tool in chat.tools]
        text = _chat(engine, chat, chat.messages, template, tools)
        return {"text": text, "token_ids": engine.token_ids(chat, text)}

    return [_record(body, name, make) for name in TEMPLATES for body in MESSAGES]


def _embeddings(engine: Engine) -> list[dict[str, Any]]:
    from pydantic import TypeAdapter
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.tokenizers import get_tokenizer

    adapter = TypeAdapter(EmbeddingRequest)
    engine.config.encoder_config = engine.config.pooler_config = None
    engine.tokenizer = get_tokenizer(engine.config.tokenizer, truncation_side="right")

    def make(body: dict[str, Any], template: str) -> dict[str, Any]:
        request = adapter.validate_python(body)
        messages = getattr(request, "messages", None)
        if messages is None:
            prompt = request.input
            if isinstance(prompt, list) and not isinstance(prompt[0], int):
                prompt = prompt[0]
        else:
            first = messages[0] if isinstance(messages[0], list) else messages
            prompt = _chat(engine, request, first, template, None)
        return {"token_ids": engine.token_ids(request, prompt)}

    return [_record(body, "chatml", make) for body in EMBEDDINGS]


def _mistral(file: str) -> list[dict[str, Any]]:
    import mistral_common
    from transformers.tokenization_mistral_common import MistralCommonBackend
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.renderers.mistral import safe_apply_chat_template
    from vllm.tokenizers.mistral import (
        MistralTokenizer,
        maybe_serialize_tool_calls,
        truncate_tool_call_ids,
        validate_request_params,
    )

    path = Path(mistral_common.__file__).parent / "data" / file
    backend = MistralCommonBackend(tokenizer_path=str(path), mode="test", truncation_side="left")
    tokenizer = MistralTokenizer(backend)
    engine = Engine(HERE / "tokenizer")
    engine.tokenizer = tokenizer

    def chat(body: dict[str, Any], _: str) -> dict[str, Any]:
        request = ChatCompletionRequest.model_validate(body)
        maybe_serialize_tool_calls(request)
        truncate_tool_call_ids(request)
        validate_request_params(request)
        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        params = request.build_chat_params(None, "auto").with_defaults(
            {"tokenize": True} if tools is None else {"tokenize": True, "tools": tools}
        )
        ids = safe_apply_chat_template(tokenizer, request.messages, **params.get_apply_chat_template_kwargs())
        tok = request.build_tok_params(engine.config)
        return {"token_ids": tok.apply_post_tokenization(tokenizer, {"prompt_token_ids": ids})["prompt_token_ids"]}

    def text(body: dict[str, Any], _: str) -> dict[str, Any]:
        request = CompletionRequest.model_validate(body)
        tok = request.build_tok_params(engine.config)
        ids = tokenizer(request.prompt, **tok.get_encode_kwargs())["input_ids"]  # as the renderer asks
        return {"token_ids": tok.apply_post_tokenization(tokenizer, {"prompt_token_ids": ids})["prompt_token_ids"]}

    records = [{**_record(body, "chatml", chat), "endpoint": "/v1/chat/completions"} for body in MISTRAL]
    records += [{**_record(body, "chatml", text), "endpoint": "/v1/completions"} for body in MISTRAL_TEXTS]
    return [{**record, "file": file} for record in records]


def main() -> None:
    """Write endpoints.json."""
    engine = Engine(HERE / "tokenizer")
    record = {
        "note": "Recorded by make_endpoints.py from the library of vLLM 0.32.",
        "responses": _responses(engine),
        "messages": _messages(engine),
        "mistral": [item for file in MISTRAL_FILES for item in _mistral(file)],
        "embeddings": _embeddings(engine),
    }
    (HERE / "endpoints.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
