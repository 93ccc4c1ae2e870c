"""One answer that grows token by token: its text, its end, and what of it may already be shown."""

from __future__ import annotations

from dataclasses import dataclass

from replica.simengine.bodies import Ask
from replica.simengine.core.request import Request
from replica.simengine.words import Words


@dataclass(slots=True)
class Delta:
    """What one token adds to an answer that is streamed."""

    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None


class Choice:
    """One of the answers to one of the prompts.

    Attributes:
        index: Its number in the response, over all prompts.
        prompt_index: Which prompt it answers.
        request: The sequence in the engine.
        text: All text so far.
        finish_reason: "length" or "stop" when it has ended.
        stop_reason: The stop string or stop token that ended it.
    """

    def __init__(self, index: int, prompt_index: int, request: Request, ask: Ask, words: Words) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.request = request
        self.text = ""
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._ask = ask
        self._words = words
        self._shown = 0
        self._held = max((len(stop) for stop in ask.stops), default=1) - 1

    def advance(self) -> Delta:
        """Take in the request's newest token; a stop string in it ends the answer."""
        request = self.request
        token = request.token_ids[-1]
        before = len(self.text)
        self.text += self._words.text.get(token, "")
        self.finish_reason = request.finish_reason
        self.stop_reason = request.stop_token_id
        if self._ask.stops and request.output_tokens >= self._ask.min_tokens:
            self._look_for_stop(before)
        end = len(self.text) if self.finish_reason else max(self._shown, len(self.text) - self._held)
        shown = self.text[self._shown : end]
        self._shown = end
        return Delta(shown, [token], self.finish_reason, self.stop_reason)

    def _look_for_stop(self, before: int) -> None:
        for stop in self._ask.stops:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self.text = self.text[: at + len(stop) if self._ask.keep_stop else at]
                self.finish_reason, self.stop_reason = "stop", stop
                return
