"""Why a prompt was not understood: every reason in one table.

Such a request is forwarded as it is and placed by load, or by what is known of its beginning. The words are stable:
they label metrics and stand in decisions.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """One word for why the router has no token ids for a request, or not all. `MEANINGS` says more."""

    ENDPOINT = "endpoint"
    BAD_JSON = "bad_json"
    BAD_REQUEST = "bad_request"
    NO_MODEL = "no_model"
    NO_TOKENIZER = "no_tokenizer"
    NO_TEMPLATE = "no_template"
    TEMPLATE_ERROR = "template_error"
    TEMPLATE_TIMEOUT = "template_timeout"
    TOKENIZER_ERROR = "tokenizer_error"
    EMPTY = "empty"
    TOO_LONG = "too_long"
    PROMPT_EMBEDS = "prompt_embeds"
    MEDIA = "media"
    ENGINE_STATE = "engine_state"
    SCORING = "scoring"
    NO_PROMPT = "no_prompt"
    UNSUPPORTED = "unsupported"
    DEADLINE = "deadline"
    QUEUE_FULL = "queue_full"
    REMOTE_DEADLINE = "remote_deadline"
    REMOTE_BUSY = "remote_busy"
    REMOTE_REFUSED = "remote_refused"
    REMOTE_FAILED = "remote_failed"
    INTERNAL = "internal"


MEANINGS: dict[Reason, str] = {
    Reason.ENDPOINT: "the path is none whose prompt the router reads",
    Reason.BAD_JSON: "the body is no JSON object",
    Reason.BAD_REQUEST: "a field that the prompt depends on has a type or value that the engine refuses",
    Reason.NO_MODEL: "the request names no model, and there is not exactly one to take for it",
    Reason.NO_TOKENIZER: "no tokenizer is configured for the model",
    Reason.NO_TEMPLATE: "the model has no chat template, or none of the name that the request needs",
    Reason.TEMPLATE_ERROR: "the chat template refused the messages or failed on them",
    Reason.TEMPLATE_TIMEOUT: "the chat template that the client brought was not rendered in time",
    Reason.TOKENIZER_ERROR: "the tokenizer failed on the text",
    Reason.EMPTY: "the prompt is empty",
    Reason.TOO_LONG: "the rendered prompt is over the size that the router is willing to work on",
    Reason.PROMPT_EMBEDS: "the prompt is given as embeddings",
    Reason.MEDIA: "the prompt holds images, sound or video of which no replica told: what stands before is known",
    Reason.ENGINE_STATE: "the prompt continues a response that the engine keeps",
    Reason.SCORING: "how texts are put together for a score depends on the model's architecture",
    Reason.NO_PROMPT: "the engine computes no prompt for this path",
    Reason.UNSUPPORTED: "the request asks for a way of rendering that the router does not follow",
    Reason.DEADLINE: "the prompt was not tokenised in time (`limits.tokenize_deadline_ms`)",
    Reason.QUEUE_FULL: "too many long prompts waited to be tokenised (`limits.tokenize_queue`)",
    Reason.REMOTE_DEADLINE: "no tokenizer here, and no replica's answer in time (`limits.remote_tokenize_deadline_ms`)",
    Reason.REMOTE_BUSY: "no tokenizer here, and too many replicas asked already (`limits.remote_tokenize_requests`)",
    Reason.REMOTE_REFUSED: "no tokenizer here, and the replica that was asked to tokenise refused",
    Reason.REMOTE_FAILED: "no tokenizer here, and the replica that was asked to tokenise gave no usable answer",
    Reason.INTERNAL: "the router failed on it, which is a fault of the router",
}
"""Each reason in a sentence, for documentation and `warmroute chain`."""


class NotUnderstoodError(Exception):
    """Raised inside this package when a prompt can't be read; `PromptReader.read` turns it into `Prompt.reason`.

    It carries a word and nothing of the request, so it is safe to log.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason
