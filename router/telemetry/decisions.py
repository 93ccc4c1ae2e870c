"""The last decisions, in memory, for `/admin/decisions`."""

from __future__ import annotations

from collections import deque
from itertools import islice

from router.scheduling.decision import Decision


class DecisionLog:
    """A ring of decisions, and the newest of each request id.

    Args:
        capacity: Decisions kept; 0 keeps none.
    """

    def __init__(self, capacity: int) -> None:
        self._ring: deque[Decision] = deque()
        self._by_id: dict[str, Decision] = {}
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._ring)

    def keep(self, capacity: int) -> None:
        """Keep so many from now on; the oldest that are too many go."""
        self._capacity = capacity
        while len(self._ring) > capacity:
            self._drop_oldest()

    def add(self, decision: Decision) -> None:
        """Keep a decision; the oldest one gives way.

        A request that is placed again (a retry) keeps one decision: its last, which tells the replicas tried before.
        """
        if self._capacity == 0:
            return
        earlier = self._by_id.get(decision.request_id)
        if decision.retries and earlier is not None and earlier.outcome is None:
            self._drop(earlier)
        elif len(self._ring) >= self._capacity:
            self._drop_oldest()
        self._ring.append(decision)
        self._by_id[decision.request_id] = decision

    def latest(self, count: int) -> list[Decision]:
        """Return up to `count` decisions, newest first."""
        return list(islice(reversed(self._ring), max(0, count)))

    def get(self, request_id: str) -> Decision | None:
        """Return a request's decision while it is kept; of several requests with one id, the newest."""
        return self._by_id.get(request_id)

    def _drop_oldest(self) -> None:
        oldest = self._ring.popleft()
        if self._by_id.get(oldest.request_id) is oldest:
            del self._by_id[oldest.request_id]

    def _drop(self, decision: Decision) -> None:
        # A retry follows at once, so the earlier decision is near the end of the ring.
        for back in range(1, len(self._ring) + 1):
            if self._ring[-back] is decision:
                del self._ring[-back]
                return
