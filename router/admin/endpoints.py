"""What a row of the table of admin endpoints says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the table.

    Attributes:
        handler: Its name among the handlers.
        is_open: Answered without the token.
    """

    method: str
    path: str
    handler: str
    meaning: str
    is_open: bool = False
