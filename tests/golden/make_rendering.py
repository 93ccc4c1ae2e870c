"""Record what the engine's own library makes of chats and prompts, into rendering.json beside this file.

Run it with the Python of a vLLM 0.32 installation:

    python tests/golden/make_rendering.py

Every body goes through the engine's request model, message preparation, template and tokenizer. Nothing of Warmroute is
imported. Tests then hold `router.request` to the record.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")

HERE = Path(__file__).parent
USER = {"role": "user", "content": "What's the <weather> in Zürich & Genf?"}
SYSTEM = {"role": "system", "content": "You are brief."}
WEATHER = {
    "function": {
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "at": {"maximum": 1.50}}},
        "name": "weather",
        "description": "The weather <b>somewhere</b> \u2013 now",
        "vendor": 1,
    },
    "type": "function",
    "vendor": 2,
}
CALL = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "weather", "arguments": '{"place": "Zürich", "at": [1, 2.0, null]}', "more": True},
    "index": 0,
}

TEMPLATES = {
    "chatml": (HERE / "tokenizer/chat_template.jinja").read_text(encoding="utf-8"),
    # Prints all that a template can see, as it is.
    "dump": (
        "{{ messages | tojson }}\n{{ tools | tojson }}\n{{ documents | tojson }}\n{{ add_generation_prompt }} "
        "{{ foo | default('-') }} {{ enable_thinking | default('-') }} {{ reasoning_effort | default('-') }} "
        "{{ bos_token | default('-') }} {{ eos_token }} {{ continue_final_message | default('-') }} "
        "{{ padding | default('-') }} content"
    ),
    "dump_developer": "{% if messages[0].role == 'developer' %}D{% endif %}{{ messages | tojson }}",
    "parts": (
        "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p | tojson }}{% endfor %}"
        "|{{ m | tojson }}{% endfor %}"
    ),
    "parts_in_macro": (
        "{%- macro show(stuff, count=1) -%}{%- if stuff is string -%}S{{ stuff }}{%- else -%}"
        "{%- for part in stuff -%}P{{ part.text }}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
        "{%- for message in messages[0:] -%}[{{ message.role }}]{{ show(stuff=message.content) }}{%- endfor -%}"
    ),
    "string_in_macro": (
        "{%- macro show(stuff) -%}{%- for content in stuff.split(' ') -%}{{ content }}.{%- endfor -%}{%- endmacro -%}"
        "{%- for message in messages -%}{{ show(message.role) }}{{ message.content }}{%- endfor -%}"
    ),
    # The habits of widely used templates: BOS, indented JSON, namespaces, loop controls, blocks on lines of their own.
    "header": """{{- bos_token | default('<|endoftext|>') }}
{%- set ns = namespace(last=-1, date=date_string if date_string is defined else '26 Jul 2024') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
<|im_start|>system
Today: {{ ns.date }}
{% if tools is not none %}
    {%- for t in tools %}
{{ t | tojson(indent=4) }}
    {% endfor %}
{% endif %}
{{ system }}<|im_end|>
{% for message in messages %}
    {% if message.role not in ['user', 'assistant', 'tool', 'system', 'developer'] %}
        {{- raise_exception('unknown role ' + message.role) }}
    {% endif %}
    {% if loop.index0 > 3 %}{% break %}{% endif %}
    {% if message.content == 'skip me' %}{% continue %}{% endif %}
    {% set ns.last = loop.index0 %}
<|im_start|>{{ message.role }}
{% generation %}
{{ message.content | trim }}
{% endgeneration %}
    {% for call in message.tool_calls or [] %}
{{ call.function | tojson }}
    {% endfor %}
<|im_end|>
{% endfor %}
{{ ns.last }}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    # Reasoning models: the thinking of earlier turns is cut.
    "thinking": (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{%- if m.reasoning_content is string %}<think>{{ m.reasoning_content }}</think>"
        "{%- elif m.role == 'assistant' and '</think>' in m.content %}"
        "{{- m.content.split('</think>')[-1].lstrip('\\n') }}"
        "{%- else %}{{ m.content }}{% endif %}"
        "{%- if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n"
        "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "documents": (
        "{% if documents %}{% for d in documents %}{{ d['title'] }}: {{ d['text'] }}\n{% endfor %}{% endif %}"
        "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    ),
}

BODIES: list[dict[str, Any]] = [
    {"messages": [SYSTEM, USER]},
    {"messages": [SYSTEM, USER], "add_generation_prompt": False},
    {"messages": [SYSTEM, USER], "add_generation_prompt": "false"},
    {"messages": [SYSTEM, USER], "add_special_tokens": True},
    {"messages": [{"content": "hi 👩‍👩‍👧 \u2028 \u00a0", "role": "user", "extra": 1, "name": "bob"}]},
    {"messages": [USER], "tools": [WEATHER]},
    {"messages": [SYSTEM, USER], "tools": [WEATHER, {"type": "function", "function": {"name": "now", "strict": True}}]},
    {"messages": [USER], "tools": [{"type": "function", "function": {"name": "z"}, "defer_loading": False}]},
    {"messages": [USER], "tools": [WEATHER], "tool_choice": "none"},
    {"messages": [USER], "tools": [{"type": "function", "function": {"description": "no name"}}]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": [{"type": "text", "text": "12°"}, {"text": "dry", "type": "text"}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "wind\n", "extra": 2},
        ],
        "tools": [WEATHER],
    },
    {
        "messages": [
            {
                "role": "assistant",
                "content": "p",
                "tool_calls": [
                    {"id": str(place), "type": "function", "function": {"name": "f", "arguments": arguments}}
                    for place, arguments in enumerate(['[1, "x"]', "", "no json", '{"big": 12345678901234567890123}'])
                ],
            }
        ]
    },
    {"messages": [{"role": "assistant", "content": "t", "reasoning_content": "think", "tool_calls": []}, USER]},
    {"messages": [{"role": "assistant", "content": "t", "reasoning": "r", "reasoning_content": "lost"}, USER]},
    {"messages": [{"role": "assistant", "content": "<think>a</think>\n\nb", "refusal": "no", "audio": None}, USER]},
    {"messages": [USER, {"role": "user", "content": "x", "reasoning": "not an assistant's"}]},
    {"messages": [{"role": "developer", "content": "dev", "name": "n"}, USER]},
    {"messages": [{"role": "developer", "content": "dev"}, SYSTEM, USER, {"role": "developer", "content": "late"}]},
    {
        "messages": [
            USER,
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]
    },
    {"messages": [{"role": "developer", "content": "dev", "tools": [WEATHER]}, USER]},
    {"messages": [{"role": "developer", "content": ""}, {"role": "developer", "content": "two"}, USER]},
    {"messages": [{"role": "critic", "content": "c", "name": "n", "task": "t", "tools": [WEATHER]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "AB"}, {"type": "text", "text": "CD"}]}]},
    {"messages": [{"role": "user", "content": "AB\nCD"}]},
    {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "in"}, {"type": "text", "text": "parts"}]},
            USER,
        ]
    },
    {
        "messages": [
            {"role": "user", "content": ["plain", {"type": "text", "text": "a", "cache_control": {"type": "e"}}]}
        ]
    },
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "refusal", "refusal": "r"},
                    {"type": "thinking", "thinking": "th", "closed": True},
                    {"type": "text", "text": None},
                    {"type": "text", "text": "end"},
                ],
            }
        ]
    },
    {
        "messages": [
            {"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "y"}]}
        ]
    },
    {"messages": [{"role": "user", "content": []}, USER]},
    {"messages": [{"role": "user", "content": ""}]},
    {"messages": [{"role": "user"}, {"role": "assistant"}, USER]},
    {"messages": [{"role": "function", "content": None, "name": "f"}, USER]},
    {"messages": [{"role": "tool", "content": [{"type": "tool_reference", "name": "weather"}], "tool_call_id": None}]},
    {"messages": [{"role": "system", "content": "x-anthropic-billing-header: v=1;\nkeep"}, USER]},
    {"messages": [{"role": "system", "content": "x-anthropic-billing-header: v=1;"}, SYSTEM, USER]},
    {"messages": [USER, {"role": "assistant", "content": "The weather is "}], "continue_final_message": True},
    {
        "messages": [USER, {"role": "assistant", "content": "The weather is "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    {
        "messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": " in  parts "}]}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    {"messages": [USER, SYSTEM, {"role": "user", "content": "skip me"}, USER, USER, USER]},
    {"messages": []},
    {"messages": [USER], "documents": [{"text": "It rains.", "title": "Log"}, {"title": "B", "text": "b"}]},
    {"messages": [USER], "chat_template_kwargs": {"foo": "auto", "enable_thinking": False}, "reasoning_effort": "low"},
    {"messages": [USER], "chat_template_kwargs": {"foo": None, "tools": [WEATHER]}, "reasoning_effort": "none"},
    {"messages": [USER], "chat_template_kwargs": {"foo": {"a": [1]}, "bos_token": "<B>", "padding": True, "x": 1}},
    {"messages": [USER], "chat_template_kwargs": {"add_generation_prompt": False, "continue_final_message": True}},
    {
        "messages": [USER],
        "chat_template_kwargs": {"date_string": "1 Jan 2026", "documents": [{"title": "k", "text": "w"}]},
    },
    {"messages": [USER], "reasoning_effort": "high"},
    {"messages": [USER, {"role": "assistant", "content": "ok"}, USER], "truncate_prompt_tokens": 9},
    {"messages": [SYSTEM, USER], "truncate_prompt_tokens": 9, "add_special_tokens": True},
    {"messages": [SYSTEM, USER], "truncate_prompt_tokens": 9, "truncation_side": "right"},
]

PROMPTS: list[dict[str, Any]] = [
    {"prompt": "The quick brown fox jumps"},
    {"prompt": "The quick brown fox jumps", "add_special_tokens": False},
    {"prompt": "<|im_start|>user\nhi<|im_end|>"},
    {"prompt": "The quick brown fox jumps over the lazy dog", "truncate_prompt_tokens": 5},
    {"prompt": "The quick brown fox jumps over the lazy dog", "truncate_prompt_tokens": 5, "truncation_side": "left"},
    {"prompt": "The quick brown fox jumps over the lazy dog", "truncate_prompt_tokens": 5, "truncation_side": "right"},
    {"prompt": "The quick brown fox jumps over", "truncate_prompt_tokens": 5, "add_special_tokens": False},
    {"prompt": "The quick", "truncate_prompt_tokens": 500},
    {"prompt": [5, 6, 7, 8, 9, 10], "truncate_prompt_tokens": 4},
    {"prompt": [5, 6, 7, 8, 9, 10], "truncate_prompt_tokens": 4, "truncation_side": "right"},
    {"prompt": ["first one", "second"]},
    {"prompt": [[9, 8, 7], [1]]},
]

# The same vocabulary with a tokenizer that adds a token of its own before, and one after.
BOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]},
        "<|im_end|>": {"id": "<|im_end|>", "ids": [2], "tokens": ["<|im_end|>"]},
    },
}


def _bos_folder(folder: Path) -> Path:
    for file in (HERE / "tokenizer").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"] = BOS
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


class Engine:
    """The parts of the engine between a request's body and its token ids."""

    def __init__(self, folder: Path) -> None:
        from vllm.tokenizers import get_tokenizer

        self.tokenizer = get_tokenizer(str(folder))
        self.config = SimpleNamespace(
            multimodal_config=None,
            enable_prompt_embeds=False,
            tokenizer_revision=None,
            code_revision=None,
            revision=None,
            trust_remote_code=False,
            tokenizer=str(folder),
            model=str(folder),
            hf_config=SimpleNamespace(model_type="llama"),
            max_model_len=32768,
            is_multimodal_model=False,
            allowed_local_media_path="",
            allowed_media_domains=None,
        )

    def chat_text(self, request: Any, template: str) -> str:
        """Return the text of a chat."""
        from vllm.renderers.chat_utils import parse_chat_messages
        from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template

        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        defaults = {"tokenize": False} if tools is None else {"tokenize": False, "tools": tools}
        params = request.build_chat_params(template, "auto").with_defaults(defaults)
        content_format = resolve_chat_template_content_format(
            chat_template=params.chat_template,
            tools=params.chat_template_kwargs.get("tools"),
            given_format="auto",
            tokenizer=self.tokenizer,
            model_config=self.config,
        )
        conversation, _, _ = parse_chat_messages(request.messages, self.config, content_format=content_format)
        return safe_apply_chat_template(
            self.config, self.tokenizer, conversation, **params.get_apply_chat_template_kwargs()
        )

    def token_ids(self, request: Any, prompt: Any) -> list[int]:
        """Return the ids of a text, or of ids, after truncation."""
        params = request.build_tok_params(self.config)
        ids = prompt
        if isinstance(prompt, str):
            ids = list(self.tokenizer(prompt, **params.get_encode_kwargs())["input_ids"])
        return params.apply_post_tokenization(self.tokenizer, {"prompt_token_ids": ids})["prompt_token_ids"]


def _chats(engine: Engine) -> list[dict[str, Any]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    records = []
    for name, template in TEMPLATES.items():
        for body in BODIES:
            record: dict[str, Any] = {"template": name, "body": body}
            try:
                request = ChatCompletionRequest.model_validate(json.loads(json.dumps(body)))
                record["text"] = engine.chat_text(request, template)
                record["token_ids"] = engine.token_ids(request, record["text"])
            except Exception as error:
                record["refused"] = type(error).__name__
            records.append(record)
    return records


def _completions(engine: Engine) -> list[dict[str, Any]]:
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    records = []
    for body in PROMPTS:
        request = CompletionRequest.model_validate(json.loads(json.dumps(body)))
        prompts = request.prompt
        if isinstance(prompts, str) or isinstance(prompts[0], int):
            prompts = [prompts]
        records.append({"body": body, "token_ids": [engine.token_ids(request, prompt) for prompt in prompts]})
    return records


def main() -> None:
    """Write rendering.json."""
    with tempfile.TemporaryDirectory() as folder:
        plain, bos = Engine(HERE / "tokenizer"), Engine(_bos_folder(Path(folder)))
        record = {
            "note": "Recorded by make_rendering.py from the library of vLLM 0.32.",
            "templates": TEMPLATES,
            "bos_post_processor": BOS,
            "plain": {"chats": _chats(plain), "completions": _completions(plain)},
            "bos": {"chats": _chats(bos)[: len(BODIES)], "completions": _completions(bos)},
        }
    text = json.dumps(record, ensure_ascii=True, indent=None, separators=(",", ":"))
    (HERE / "rendering.json").write_text(text.replace('{"template"', '\n{"template"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
