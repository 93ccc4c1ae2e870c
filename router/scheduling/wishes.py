"""What a request asks of its placement beside its prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request asks for.

    Attributes:
        policy: The policy that chooses, where it is another than the configured one; its name was checked.
        own: It is the router's own request, and no client's: nothing is learned from it about clients.
        session: A number that stands for the session whose requests are to stay together; None: it has none.
    """

    policy: str | None = None
    session: int | None = None
    own: bool = False


NO_WISHES = Wishes()
OWN = Wishes(own=True)
