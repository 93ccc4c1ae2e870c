"""The engines' set-ups that the generated requests are sent to: what they hash by, and what they render with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from router.kv.schemes import HashAlgorithm, Scheme
from tests.vllm.engines import ADAPTERS

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


MISTRAL = ("--tokenizer-mode", "mistral", "--config-format", "hf", "--load-format", "safetensors")


class Sends(StrEnum):
    """What a plan's engine is asked for."""

    TEXT = "text"
    INPUTS = "inputs"
    """For vectors."""
    TOKENS = "tokens"
    """For a vector of each token: an engine does one task of the two."""
    PICTURES = "pictures"
    MISTRAL = "mistral"
    """Text, in what order Mistral's chat encoding takes it."""


class Model(StrEnum):
    """What a plan's engine serves; `tests.vllm.full.models` makes each."""

    GOLDEN = "golden"
    PICTURES = "pictures"
    TEKKEN = "tekken"
    SENTENCEPIECE = "sentencepiece"
    RANKS = "ranks"


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
        sends: Which requests it gets.
        model: What model and tokenizer it serves.
        options: Further options of the engine's command.
        by_agent: Whether the agent starts the engine, with flags that it adds itself, and the router has its tokenizer,
            template and variables from that agent alone; else the agent attaches to it, and the router's configuration
            has them.
        rounds: Requests of each family that it gets.
    """

    name: str
    scheme: Scheme
    whole_hashes: bool = False
    adapters: tuple[str, ...] = ()
    adds_bos: bool = False
    template: str | None = None
    named_templates: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    sends: Sends = Sends.TEXT
    model: Model = Model.GOLDEN
    options: tuple[str, ...] = ()
    by_agent: bool = False
    rounds: int = 12

    @property
    def published_bytes(self) -> int:
        """How many of a digest's last bytes its events carry."""
        return 32 if self.whole_hashes else 8


PLANS = (
    Plan("plain", Scheme(HashAlgorithm.SHA256_CBOR, 32), adapters=ADAPTERS),
    Plan(
        "seeded",
        Scheme(HashAlgorithm.SHA256, 64, "1234"),
        adapters=ADAPTERS,
        adds_bos=True,
        template=EVERYTHING,
        variables={"foo": "operator's", "date_string": "26 Jul 2024"},
        by_agent=True,
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
        sends=Sends.INPUTS,
        options=("--runner", "pooling"),
    ),
    Plan(
        "tokens",
        Scheme(HashAlgorithm.SHA256_CBOR, 32),
        sends=Sends.TOKENS,
        options=("--runner", "pooling", "--pooler-config", '{"task": "token_embed"}'),
    ),
    # Two pictures may be the same one and share a block: in pickle's bytes it shows which texts are one object.
    Plan(
        "pictures",
        Scheme(HashAlgorithm.SHA256, 32),
        sends=Sends.PICTURES,
        model=Model.PICTURES,
        options=("--enable-scale-out",),
    ),
    Plan(
        "tekken",
        Scheme(HashAlgorithm.SHA256_CBOR, 32),
        sends=Sends.MISTRAL,
        model=Model.TEKKEN,
        options=MISTRAL,
        rounds=8,
    ),
    Plan(
        "sentencepiece",
        Scheme(HashAlgorithm.SHA256_CBOR, 32),
        sends=Sends.MISTRAL,
        model=Model.SENTENCEPIECE,
        options=MISTRAL,
        rounds=8,
    ),
    Plan(
        "ranks",
        Scheme(HashAlgorithm.SHA256_CBOR, 32),
        model=Model.RANKS,
        options=("--enable-prompt-embeds",),
        rounds=8,
    ),
)
