"""What an engine counted itself of its prefix cache, since the router first heard it."""

from __future__ import annotations

LATELY_S = 60.0
"""What was counted so long ago weighs 1/e of what is counted now."""


class CacheCounts:
    """Adds up what an engine's counters grow by. An engine that restarts begins at zero again, and nothing is lost.

    Attributes:
        queries: Prompt tokens that were looked up in the cache.
        hits: Of them found.
    """

    __slots__ = ("_last", "_late_hits", "_late_queries", "hits", "queries")

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0
        self._late_queries = self._late_hits = 0.0
        self._last: tuple[int, int, float] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the engine tells."""
        return self._last is not None

    @property
    def lately(self) -> float | None:
        """The hit share of about the last minute, 0 to 1; None where nothing was asked."""
        return self._late_hits / self._late_queries if self._late_queries >= 1 else None

    def told(self, queries: int, hits: int, now_s: float) -> None:
        """The engine's counters stand at this."""
        last, self._last = self._last, (queries, hits, now_s)
        if last is None:
            return
        restarted = queries < last[0] or hits < last[1]
        more_queries, more_hits = (queries, hits) if restarted else (queries - last[0], hits - last[1])
        self.queries += more_queries
        self.hits += more_hits
        faded = max(0.0, 1 - (now_s - last[2]) / LATELY_S)
        self._late_queries = self._late_queries * faded + more_queries
        self._late_hits = self._late_hits * faded + more_hits

    @classmethod
    def together(cls, counts: list[CacheCounts]) -> CacheCounts | None:
        """Return the sum; None where none is known."""
        known = [count for count in counts if count.is_known]
        if not known:
            return None
        whole = cls()
        for one in known:
            whole.queries += one.queries
            whole.hits += one.hits
            whole._late_queries += one._late_queries
            whole._late_hits += one._late_hits
        return whole
