"""Engines whose events the agent reads: one file and one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from router.kv.events import Event


@dataclass(slots=True)
class Batch:
    """What one frame of an engine said.

    Attributes:
        events: In the engine's order, odd ones left out.
        rank: Data-parallel rank that the batch names, or None.
        at_s: Unix time in seconds at which the engine made it, or None.
        skipped: Reason for each event, field or frame that was left out, with how often.
    """

    events: list[Event] = field(default_factory=list)
    rank: int | None = None
    at_s: float | None = None
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count one more thing left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


class Adapter(Protocol):
    """Turns an engine's event payloads into engine-neutral events. Stateless."""

    name: str

    def read(self, payload: bytes) -> Batch:
        """Return what the payload says. Raises nothing: rubbish is an empty batch with its reason counted."""
        ...


def adapters() -> dict[str, Callable[[], Adapter]]:
    """Every engine that is known, by name."""
    from replica.agent.adapters.sglang import SglangAdapter
    from replica.agent.adapters.vllm import VllmAdapter

    return {
        "vllm": VllmAdapter,
        "sglang": SglangAdapter,
    }
