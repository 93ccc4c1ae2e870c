"""How much of a conversation its next turn finds cached, and how soon that is back after an event.

Not the hit rate of all prompts: that swings with what users happen to ask. A later turn of a chat holds the whole turn
before it, so a router that knows its fleet sends it where all of that is cached, and the share that is delivered should
be near 1 whatever the traffic. Only whole blocks are cached, so the turn before counts down to the fleet's largest
block.

Everything counts turns, not seconds: a slow machine takes longer for the same number of turns, and no longer to
recover.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from loadtest.workloads.conversations import Session
from router.tools.chaos.traffic import Attempt

LARGEST_BLOCK_TOKENS = 32
WINDOW_TURNS = 40
"""Two routings of one such turn differ by up to 0.8 or so; of 40 the mean is known to some hundredths."""
TOLERANCE = 0.1
BOUND_TURNS = 200
"""Until the hit rate must be back. All chats that were there when it struck are over after some 60 (12 users, at most 4
later turns each), so that whoever has not recovered by then has lost more than the blocks that went."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A later turn of a chat.

    Attributes:
        began_s: `time.monotonic()` when it was sent.
        known_tokens: Of the turn before, in whole blocks; above 0.
        cached_tokens: Of these, how many the engine found.
    """

    began_s: float
    known_tokens: int
    cached_tokens: int


def share(turns: deque[Turn] | list[Turn]) -> float:
    """Return the share of the known tokens that was cached, 0 to 1; 0 without turns."""
    known = sum(turn.known_tokens for turn in turns)
    return sum(turn.cached_tokens for turn in turns) / known if known else 0.0


class Window:
    """The last turns that began at or after a moment."""

    def __init__(self, since_s: float, goal: float = 0.0, size: int = WINDOW_TURNS) -> None:
        """Begin empty.

        Args:
            goal: Share at which it is reached.
            size: Turns that count at once.
        """
        self.since_s = since_s
        self.goal = goal
        self.seen = 0
        self._last: deque[Turn] = deque(maxlen=size)

    @property
    def share(self) -> float:
        """Of the last turns."""
        return share(self._last)

    @property
    def reached(self) -> bool:
        """Whether the window is full and its share is at the goal."""
        return len(self._last) == self._last.maxlen and self.share >= self.goal

    def add(self, turn: Turn) -> None:
        """Take a turn; one that began before is left out."""
        if turn.began_s >= self.since_s:
            self.seen += 1
            self._last.append(turn)


class Hits:
    """Takes what users were answered, and lets one wait for a window."""

    def __init__(self) -> None:
        self.turns = 0
        self.known_tokens = self.cached_tokens = 0
        self._before: dict[str, int] = {}
        self._windows: list[Window] = []
        self._more = asyncio.Event()

    def answered(self, session: Session, number: int, attempt: Attempt) -> None:
        """Take one answer; of sessions that do not remember nothing follows."""
        if not session.remembers:
            return
        prompt_tokens, cached_tokens = attempt.answer.prompt_tokens, attempt.answer.cached_tokens
        known = self._before.pop(session.session_id, 0) // LARGEST_BLOCK_TOKENS * LARGEST_BLOCK_TOKENS
        if prompt_tokens is None or cached_tokens is None:
            return
        if number + 1 < len(session.turns):
            self._before[session.session_id] = prompt_tokens
        if number == 0 or not known:
            return
        turn = Turn(attempt.began_s, known, min(known, cached_tokens))
        self.turns += 1
        self.known_tokens += turn.known_tokens
        self.cached_tokens += turn.cached_tokens
        for window in self._windows:
            window.add(turn)
        self._more.set()

    async def until_reached(self, window: Window, most_turns: int) -> bool:
        """Wait until a window is reached, or has seen `most_turns`; tell which."""
        self._windows.append(window)
        try:
            while not window.reached and window.seen < most_turns:
                self._more.clear()
                await self._more.wait()
        finally:
            self._windows.remove(window)
        return window.reached

    @property
    def share(self) -> float:
        """Of all turns so far."""
        return self.cached_tokens / self.known_tokens if self.known_tokens else 0.0
