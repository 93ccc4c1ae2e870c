"""The engines' set-ups that the generated requests are sent to: what they hash by, and what they render with."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.kv.schemes import HashAlgorithm, Scheme
from tests.vllm.engines import ADAPTERS, TOKENIZER

BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
}
"""A post-processor that puts `<|endoftext|>` before plain texts."""

EVERYTHING = """{{- bos_token }}
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson(indent=2) }}
{% endfor %}<|im_end|>
{% endif %}
{%- for document in documents or [] %}{{ document['title'] }}: {{ document['text'] }}
{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}{% if message.name %} {{ message.name }}{% endif %}

{% for part in message.content %}[{{ part.type }}]{{ part.text }}{% endfor %}
{% if message['role'] == 'developer' %}(developer){% endif %}
{% if message.reasoning_content %}<think>{{ message.reasoning_content | trim }}</think>{% endif %}
{{ message | tojson }}<|im_end|>
{% endfor %}
{{- foo | default('-') }} {{ enable_thinking | default('-') }} {{ reasoning_effort | default('-') }} {{ date_string }}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template that knows developers, takes parts, and prints all that reaches it."""

THINKING = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.content and '</think>' in m.content %}
{{- m.content.split('</think>')[-1].lstrip('\\n') }}
{%- else %}{{ m.content or '' }}{% endif %}
{%- if m.reasoning_content is string and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}
{%- for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
"""As reasoning models have it: the thinking of earlier turns is cut."""

WITH_TOOLS = "{%- for tool in tools %}{{ tool | tojson }}\n{% endfor %}" + THINKING


@dataclass(frozen=True)
class Plan:
    """One engine's set-up.

    Attributes:
        name: Begins the names of its tests.
        scheme: Algorithm, block size in tokens and PYTHONHASHSEED.
        whole_hashes: Whether it publishes whole digests; else their last 64 bits, as by default.
        adapters: Names of the LoRAs that it serves.
        adds_bos: Whether its tokenizer puts a token before plain texts.
        template: Its `--chat-template`; None: the one in the folder.
        named_templates: What `tokenizer_config.json` has instead of the folder's template; empty: nothing.
        variables: Its `--default-chat-template-kwargs`.
        gives_vectors: Whether it serves the model for embeddings; else it writes.
    """

    name: str
    scheme: Scheme
    whole_hashes: bool = False
    adapters: tuple[str, ...] = ()
    adds_bos: bool = False
    template: str | None = None
    named_templates: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    gives_vectors: bool = False

    @property
    def published_bytes(self) -> int:
        """How many of a digest's last bytes its events carry."""
        return 32 if self.whole_hashes else 8

    def make_tokenizer(self, out: Path) -> Path:
        """Write the folder with its tokenizer and templates; the path of the `--chat-template`, if any, lies in it."""
        shutil.copytree(TOKENIZER, out, copy_function=shutil.copyfile)
        if self.adds_bos:
            _change(out / "tokenizer.json", post_processor=BOS)
            _change(out / "tokenizer_config.json", bos_token="<|endoftext|>")
        if self.named_templates:
            named = [{"name": name, "template": source} for name, source in self.named_templates.items()]
            _change(out / "tokenizer_config.json", chat_template=named)
            (out / "chat_template.jinja").unlink()
        if self.template is not None:
            (out / "engine.jinja").write_text(self.template, encoding="utf-8")
        return out


def _change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


PLANS = (
    Plan("plain", Scheme(HashAlgorithm.SHA256_CBOR, 32), adapters=ADAPTERS),
    Plan(
        "seeded",
        Scheme(HashAlgorithm.SHA256, 64, "1234"),
        adapters=ADAPTERS,
        adds_bos=True,
        template=EVERYTHING,
        variables={"foo": "operator's", "date_string": "26 Jul 2024"},
    ),
    Plan(
        "xxhash",
        Scheme(HashAlgorithm.XXHASH_CBOR, 32, "0"),
        whole_hashes=True,
        named_templates={"default": THINKING, "tool_use": WITH_TOOLS},
    ),
    # Chats of an embedding API lack the operator's variables. The seed is a word that Python takes, as good as another.
    Plan(
        "vectors",
        Scheme(HashAlgorithm.XXHASH, 32, "random"),
        adds_bos=True,
        template=EVERYTHING,
        variables={"foo": "operator's"},
        gives_vectors=True,
    ),
)
