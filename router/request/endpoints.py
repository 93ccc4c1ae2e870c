"""Every path whose prompt the router reads, and what is particular to it. Follows vLLM 0.32.

What the engine does for each path:

| path | prompt | special tokens added | prefix cache |
|---|---|---|---|
| /v1/chat/completions | messages by the template | only when asked | read, unless for logprobs of the prompt |
| /v1/completions | text or ids | unless asked not to | read, unless for logprobs of the prompt |
| /v1/responses | items, turned into messages | always | read |
| /v1/messages | turned into messages | never | read |
| /v1/embeddings, /classify | text or ids, or messages without the engine's default variables | for text | read |
| /pooling | the same | for text | read for the tasks `embed` and `classify` alone |
| /score, /rerank and the like | pairs of texts, put together as the model's class says | - | - |
| /tokenize and the like | computed for nothing | - | - |

Where a prefix cache is read is a question to the model too: one that is not causal has none (trust NONE). Of several
prompts in one request the first one decides the place: they all go to one replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from router.request.prompt import Kind


class Shape(Enum):
    """How a body holds its prompt."""

    CHAT = auto()
    TEXT = auto()
    RESPONSES = auto()
    MESSAGES = auto()
    EMBEDDING = auto()
    POOLING = auto()
    SCORING = auto()
    NONE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path.

    Attributes:
        kind: The API, as placement knows it.
        shape: How the body holds its prompt.
        limit_fields: Fields that limit the answer's tokens; the first that is there counts.
    """

    kind: Kind
    shape: Shape
    limit_fields: tuple[str, ...] = ()


UNKNOWN = Endpoint(Kind.OTHER, Shape.UNKNOWN)
_EMBEDDING = Endpoint(Kind.POOLING, Shape.EMBEDDING)
_SCORING = Endpoint(Kind.POOLING, Shape.SCORING)
_NO_PROMPT = Endpoint(Kind.OTHER, Shape.NONE)
ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": Endpoint(Kind.CHAT, Shape.CHAT, ("max_completion_tokens", "max_tokens")),
    "/v1/completions": Endpoint(Kind.COMPLETION, Shape.TEXT, ("max_tokens",)),
    "/v1/responses": Endpoint(Kind.CHAT, Shape.RESPONSES, ("max_output_tokens",)),
    "/v1/messages": Endpoint(Kind.CHAT, Shape.MESSAGES, ("max_tokens",)),
    "/v1/embeddings": _EMBEDDING,
    "/classify": _EMBEDDING,
    "/pooling": Endpoint(Kind.POOLING, Shape.POOLING),
    **dict.fromkeys(("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"), _SCORING),
    **dict.fromkeys(("/tokenize", "/detokenize", "/v1/messages/count_tokens"), _NO_PROMPT),
}
"""By path, without its query."""
