"""How many requests may be sent again: a share of all, so that retries can't add much to an outage. Pure."""

from __future__ import annotations

REFILL_PER_S = 10.0
"""A router with little traffic may retry, too."""


class RetryBudget:
    """Retries that are left: some at once, then as many as requests and time have earned.

    Attributes:
        share: Retries that each request earns.
        reserve: The most that is kept.
    """

    __slots__ = ("_at_s", "_left", "_requests", "reserve", "share")

    def __init__(self, share: float, reserve: int) -> None:
        self.share = share
        self.reserve = reserve
        self._left = float(reserve)
        self._requests = 0
        self._at_s: float | None = None

    def take(self, requests: int, now_s: float) -> bool:
        """Use one retry; False when none is left.

        Args:
            requests: How many the router has had so far. Counted by whoever has them, so that a request costs nothing
                here.
        """
        elapsed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        earned = self.share * (requests - self._requests) + REFILL_PER_S * elapsed_s
        self._requests, self._at_s = requests, now_s
        # A reserve of 0 leaves the share: what is earned at one time and used at once.
        self._left = min(max(self.reserve, 1.0), self._left + earned)
        if self._left < 1:
            return False
        self._left -= 1
        return True
