"""What a rule of placement is told, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from router.tools.simulation.engine import Engine
from router.tools.simulation.requests import Job


class Rule(Protocol):
    """Places requests. It is told what a router could hear; what it looks at beyond that is for it to say."""

    def joined(self, replica: int, engine: Engine) -> None:
        """A replica may take requests from now on."""

    def left(self, replica: int) -> None:
        """A replica is gone, with everything in it."""

    def place(self, job: Job) -> int:
        """Return the replica that a request goes to: one of those that joined and did not leave."""

    def stored(self, replica: int, blocks: Sequence[int]) -> None:
        """A replica announced blocks."""

    def removed(self, replica: int, blocks: Iterable[int]) -> None:
        """A replica announced that blocks are gone."""

    def first_token(self, job: Job) -> None:
        """A request's first token passed."""

    def finished(self, job: Job) -> None:
        """A request's last token passed."""

    def lost(self, job: Job) -> None:
        """A request's replica is gone; it will be placed again."""
