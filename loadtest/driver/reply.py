"""What came back of one request, whoever sent it, and what is told by a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtest.workloads.answers import StreamedAnswer

PATH = "/v1/chat/completions"
HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
MATCHED_HEADER = "x-warmroute-matched-tokens"
REPLICA_HEADER = "x-warmroute-replica"
MESSAGE_AT_MOST = 200
STREAM_ENDED_EARLY = "stream-ended-early"
ERROR_IN_STREAM = "error-in-stream"
NOT_JSON = "answer-is-not-json"


@dataclass(slots=True)
class Reply:
    """What came back.

    Attributes:
        pieces_s: When pieces with generated tokens came, by the clock that was given.
    """

    status: int | None = None
    replica: str = ""
    matched_tokens: int | None = None
    pieces_s: list[float] = field(default_factory=list)
    answer: StreamedAnswer = field(default_factory=StreamedAnswer)
    cause: str | None = None
    message: str = ""

    def take_head(self, status: int, headers: Mapping[str, Any]) -> None:
        """Take the status, and what Warmroute says in its headers; the names are in lower case where case counts."""
        self.status = status
        self.replica = headers.get(REPLICA_HEADER, "")
        matched = headers.get(MATCHED_HEADER, "")
        self.matched_tokens = int(matched) if matched.isdigit() else None

    def take_refusal(self, raw: bytes) -> None:
        """Take the body of an answer that is not 200; the cause has OpenAI's code where there is one."""
        try:
            error = orjson.loads(raw)["error"]
            code, message = error.get("code"), str(error.get("message", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            code, message = None, raw.decode(errors="replace")
        # Engines repeat the status as their code.
        named = f" {code[:40]}" if isinstance(code, str) and code and code != str(self.status) else ""
        self.cause, self.message = f"http-{self.status}{named}", message[:MESSAGE_AT_MOST]

    def take_whole(self, raw: bytes) -> None:
        """Take an answer that was not streamed."""
        if not self.answer.take_whole(raw):
            self.cause = NOT_JSON

    def end_stream(self) -> None:
        """Judge a stream that ended."""
        if self.answer.error is not None:
            self.cause, self.message = ERROR_IN_STREAM, self.answer.error[:MESSAGE_AT_MOST]
        elif not self.answer.done:
            self.cause = STREAM_ENDED_EARLY
