"""One request and its outcome."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from loadtest.workloads.conversations import Kind


@dataclass(slots=True)
class Record:
    """What came of one request.

    Times are seconds: `intended_s` and `sent_s` count from the start of the run, the others from `intended_s`. A
    request that a busy generator, or a system that hangs, kept from being sent in time has waited all the same: its
    user would have.

    Attributes:
        session: Of which session it is.
        turn: Its place in there, from 0.
        kind: The session's class.
        stage: Which stage of arrivals its session came in, from 0.
        intended_s: When it should have been sent.
        sent_s: When it was.
        ttft_s: Until the first generated token; None without one, and where answers are not streamed.
        total_s: Until the end of the answer, or the failure.
        gaps_s: Between the arrivals of successive pieces of the answer (ITL where a piece is a token).
        status: Of HTTP; None where no answer came.
        replica: Which replica answered, as the router says; empty where it says nothing.
        matched_tokens: Cached tokens the router expected there; None where it does not say.
        prompt_tokens: The engine's count; None where it does not say.
        output_tokens: The engine's count; None where it does not say.
        cached_tokens: Prompt tokens that the engine found in its cache; None where it does not say.
        cause: A stable word for what went wrong; None: nothing did.
        message: More about it, at most 200 characters.
        model: What it asked for: the model, or an adapter.
        tenant: Which of the keys it had, from 0; None: none.
    """

    session: str
    turn: int
    kind: Kind
    stage: int
    intended_s: float
    sent_s: float
    ttft_s: float | None = None
    total_s: float = 0.0
    gaps_s: array[float] = field(default_factory=lambda: array("f"))
    status: int | None = None
    replica: str = ""
    matched_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cause: str | None = None
    message: str = ""
    model: str = ""
    tenant: int | None = None

    @property
    def late_s(self) -> float:
        """How much later than intended it was sent: the generator's own fault."""
        return self.sent_s - self.intended_s

    def pack(self) -> list[Any]:
        """Return it as plain values and bytes, to be sent to another process."""
        return [value.tobytes() if isinstance(value, array) else value for value in map(self._get, self.__slots__)]

    @classmethod
    def unpack(cls, packed: list[Any]) -> Record:
        """Return the record that was packed."""
        values = dict(zip(cls.__slots__, packed, strict=True))
        return cls(**values | {"kind": Kind(values["kind"]), "gaps_s": array("f", values["gaps_s"])})

    def _get(self, name: str) -> Any:
        return getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, gaps as their mean and longest."""
        gaps = self.gaps_s
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name in self.__slots__
            if name != "gaps_s"
            for value in (getattr(self, name),)
        } | {
            "itl_mean_s": round(sum(gaps) / len(gaps), 6) if gaps else None,
            "itl_max_s": round(max(gaps), 6) if gaps else None,
        }
