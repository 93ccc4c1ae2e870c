"""The answer format of /v1/completions."""

from __future__ import annotations

from typing import Any

from replica.simengine.choices import Choice, Delta
from replica.simengine.formats import LOGPROB, Format, fingerprint


class CompletionFormat(Format):
    """`text_completion`."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def opening(self) -> list[bytes]:
        """Return nothing: a completion starts with its first token."""
        return []

    def created_cache_tokens(self, choice: Choice) -> int | None:
        """Return None: completions do not report it."""
        return None

    def choice_chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """Return the `choices` entry for one token."""
        first = choice.request.output_tokens == 1
        text = self._echo(choice) + delta.text if first else delta.text
        ids = delta.token_ids
        if first and self._ask.echo:
            ids = [*self._ask.prompts[choice.prompt_index], *ids]
        returns = self._ask.return_token_ids
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(ids, first=first),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": self._ask.prompts[choice.prompt_index] if returns and first else None,
            "token_ids": delta.token_ids if returns else None,
        }

    def whole(self) -> dict[str, Any]:
        """Return the response that is not streamed."""
        return {
            "id": self._id,
            "object": self.kind,
            "created": self._created,
            "model": self._model,
            "choices": [self._whole_choice(choice) for choice in self.choices],
            "service_tier": None,
            "system_fingerprint": fingerprint(self._settings),
            "usage": self.usage(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        prompt = self._ask.prompts[choice.prompt_index]
        output = list(choice.request.output())
        returns = self._ask.return_token_ids
        prompt_logprobs = None
        if self._ask.prompt_logprobs:
            prompt_logprobs = [None, *({str(token): self._prompt_logprob(token)} for token in prompt[1:])]
        return {
            "index": choice.index,
            "text": self._echo(choice) + choice.text,
            "logprobs": self._logprobs([*prompt, *output] if self._ask.echo else output, first=True),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": output if returns else None,
            "prompt_logprobs": prompt_logprobs,
            "prompt_token_ids": prompt if returns else None,
            "routed_experts": None,
        }

    def _echo(self, choice: Choice) -> str:
        if not self._ask.echo or self._ask.return_token_ids:
            return ""
        text = self._ask.texts[choice.prompt_index]
        return self._text.decode(self._ask.prompts[choice.prompt_index]) if text is None else text

    def _prompt_logprob(self, token: int) -> dict[str, Any]:
        return {"logprob": LOGPROB, "rank": 1, "decoded_token": self.token_text(token)}

    def _logprobs(self, ids: list[int], *, first: bool) -> dict[str, Any] | None:
        if self._ask.logprobs is None:
            return None
        tokens = [self.token_text(token) for token in ids]
        offsets, offset = [], 0
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        values: list[float | None] = [LOGPROB] * len(ids)
        tops: list[dict[str, float] | None] = [{token: LOGPROB} for token in tokens]
        if first and self._ask.echo and ids:
            values[0] = tops[0] = None
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}
