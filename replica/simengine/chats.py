"""The answer format of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import orjson

from replica.simengine.choices import Choice, Delta
from replica.simengine.formats import LOGPROB, Format, fingerprint


class ChatFormat(Format):
    """`chat.completion`, and `chat.completion.chunk` when streamed."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> list[bytes]:
        """Return one chunk an answer, with its role."""
        chunks = []
        for choice in self.choices:
            entry = {
                "index": choice.index,
                "delta": {"role": self._ask.role, "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            tail: dict[str, Any] = {}
            if self._ask.usage_in_each:
                tail["usage"] = self._counts(choice.request.prompt_tokens, 0) | self._continuous_details()
            tail["prompt_token_ids"] = self._ask.prompts[0] if self._ask.return_token_ids else None
            tail["prompt_text"] = None
            chunks.append(self._head + orjson.dumps(entry) + b"]," + orjson.dumps(tail)[1:])
        return chunks

    def created_cache_tokens(self, choice: Choice) -> int | None:
        """Return the prompt's whole blocks that were not there yet, in tokens."""
        size = self._settings.block_size
        return max(0, choice.request.prompt_tokens // size * size - (choice.request.cached_tokens or 0))

    def choice_chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the `choices` entry for one token."""
        entry: dict[str, Any] = {
            "index": choice.index,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs(delta.token_ids),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            entry["stop_reason"] = delta.stop_reason
        entry["token_ids"] = delta.token_ids if self._ask.return_token_ids else None
        return entry

    def whole(self) -> dict[str, Any]:
        """Return the response that is not streamed."""
        returns = self._ask.return_token_ids
        return {
            "id": self._id,
            "object": self.kind,
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": choice.index,
                    "message": {
                        "role": self._ask.role,
                        "content": choice.text,
                        "refusal": None,
                        "annotations": None,
                        "audio": None,
                        "function_call": None,
                        "reasoning": None,
                    },
                    "logprobs": self._logprobs(list(choice.request.output())),
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    "token_ids": list(choice.request.output()) if returns else None,
                    "routed_experts": None,
                }
                for choice in self.choices
            ],
            "service_tier": None,
            "system_fingerprint": fingerprint(self._settings),
            "usage": self.usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": self._ask.prompts[0] if returns else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _continuous_details(self) -> dict[str, Any]:
        return {"completion_tokens_details": None}

    def _logprobs(self, ids: list[int]) -> dict[str, Any] | None:
        if self._ask.logprobs is None:
            return None
        content = []
        for token in ids:
            text = self.token_text(token)
            mine = {"token": text, "logprob": LOGPROB, "bytes": list(text.encode())}
            content.append({**mine, "top_logprobs": [mine] if self._ask.logprobs else []})
        return {"content": content}
