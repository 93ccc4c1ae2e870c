"""What the data plane reads and records with, in its tests."""

from __future__ import annotations

import json
from collections.abc import Callable

from router.placement import Placement
from router.request.prompt import Kind, Prompt
from router.request.reasons import Reason
from router.scheduling.decision import Decision, Outcome
from router.telemetry.recorder import RequestFacts


class JsonReader:
    """A reader without a tokenizer: a prompt's ids are its characters."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def quick(self, path: str, body: bytes, inline_bytes: int) -> Prompt | None:
        return self.read(path, body) if len(body) <= inline_bytes else None

    def read(self, path: str, body: bytes, drafted: Callable[[Prompt], None] | None = None) -> Prompt:
        self.reads.append(path)
        try:
            data = json.loads(body)
            ids = [*map(ord, data["messages"][0]["content"][:4096])]
        except (ValueError, KeyError, TypeError):
            return Prompt(Kind.OTHER, None, False, None, max(1, len(body) // 4), reason=Reason.BAD_JSON)
        return Prompt(Kind.CHAT, data.get("model"), bool(data.get("stream")), ids, len(ids))


class Notes:
    """Records everything it is told; each request must be accounted for exactly once."""

    def __init__(self) -> None:
        self.accepted_count = 0
        self.decisions: list[Decision] = []
        self.outcomes: list[tuple[RequestFacts, Outcome]] = []
        self.retries: list[str] = []
        self.remote: list[str] = []
        self.ejections = 0
        self.waiting = 0
        self.queue_waits_s: list[float] = []

    def accepted(self) -> None:
        self.accepted_count += 1

    def prompt_read(self, seconds: float, reason: str | None) -> None:
        assert seconds >= 0

    def remote_tokenized(self, result: str) -> None:
        self.remote.append(result)

    def placed(self, decision: Decision, seconds: float) -> None:
        assert seconds >= 0
        self.decisions.append(decision)

    def retried(self, reason: str) -> None:
        self.retries.append(reason)

    def queue_changed(self, waiting: int) -> None:
        self.waiting = waiting

    def queue_left(self, waited_s: float) -> None:
        self.queue_waits_s.append(waited_s)

    def ejected(self) -> None:
        self.ejections += 1

    def finished(self, placement: Placement | None, outcome: Outcome, facts: RequestFacts) -> None:
        self.outcomes.append((facts, outcome))

    @property
    def last(self) -> Outcome:
        return self.outcomes[-1][1]
