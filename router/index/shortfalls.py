"""Blocks that a unit was believed to hold and its engine did not find: to be told to the unit's agent. Bounded.

The router does not take them out of its index itself. The engine has just computed these blocks and stored them again,
and only the agent saw whether it announced that; so the agent decides, and what it then publishes corrects all routers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_BLOCKS = 64
"""Of one request: the first that were missing, which is where a prefix breaks off."""
MAX_WAITING = 256


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What one request showed.

    Attributes:
        blocks: Hashes, in the order of the chain.
        placed_s: When it was placed (the router's clock): what the engine announced since may hold them again.
    """

    unit_id: str
    blocks: tuple[int, ...]
    placed_s: float


class Shortfalls:
    """What waits to be told."""

    def __init__(self) -> None:
        self._waiting: list[Shortfall] = []

    def add(self, unit_id: str, blocks: Sequence[int], placed_s: float) -> None:
        """Keep one; when too many wait, it is dropped: belief that is wrong shows again."""
        if blocks and len(self._waiting) < MAX_WAITING:
            self._waiting.append(Shortfall(unit_id, tuple(blocks[:MAX_BLOCKS]), placed_s))

    def take(self) -> list[Shortfall]:
        """Return what waits, and forget it."""
        waiting, self._waiting = self._waiting, []
        return waiting
