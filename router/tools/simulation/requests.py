"""What is asked in a simulation: sessions of turns, whose prompts are given by the names of their blocks.

Two blocks have one name when they and everything before them are equal. That is all that prefix caches and placement
look at, so no text is made and nothing is hashed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        prompt_tokens: Length of the prompt, 1 or more.
        output_tokens: Length of the answer, 1 or more.
        blocks: Names of the prompt's blocks, first to last. The last may be filled in part only.
        answer_blocks: Names of the whole blocks that hold some of the answer, after the prompt's whole blocks.
        think_s: Seconds between the answer before and this request; of the first turn nothing.
    """

    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    answer_blocks: tuple[int, ...] = ()
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow each other: each comes when the answer before it has ended.

    Attributes:
        start_s: When the first turn comes, in seconds after the start.
        turns: At least one.
    """

    start_s: float
    turns: tuple[Turn, ...]


def requests_of(sessions: Iterable[Session]) -> int:
    """Count the requests of sessions."""
    return sum(len(session.turns) for session in sessions)


@dataclass(slots=True, eq=False)
class Job:
    """A turn on its way through the fleet.

    Attributes:
        number: In the order of arrival, from 0.
        session: What it belongs to.
        index: Which turn of its session it is.
        arrived_s: When it came.
        replica: Where it was placed last.
        cached_tokens: Prompt tokens that its engine took from its cache; None before it looked.
        first_token_s: When its first token came, of whichever try.
        finished_s: When its last one came.
        tries: How often it was placed: more than once when a replica was lost.
    """

    number: int
    session: Session
    index: int
    arrived_s: float
    replica: int = -1
    cached_tokens: int | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    tries: int = 0

    @property
    def turn(self) -> Turn:
        """What is asked."""
        return self.session.turns[self.index]

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token; None where none came."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s
