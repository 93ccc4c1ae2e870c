"""What an engine counted itself of its prefix cache, since the router first heard it."""

from __future__ import annotations


class CacheCounts:
    """Adds up what an engine's counters grow by. An engine that restarts begins at zero again, and nothing is lost.

    Attributes:
        queries: Prompt tokens that were looked up in the cache.
        hits: Of them found.
    """

    __slots__ = ("_last", "hits", "queries")

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0
        self._last: tuple[int, int] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the engine tells."""
        return self._last is not None

    def told(self, queries: int, hits: int) -> None:
        """The engine's counters stand at this."""
        last = self._last
        if last is not None:
            restarted = queries < last[0] or hits < last[1]
            self.queries += queries if restarted else queries - last[0]
            self.hits += hits if restarted else hits - last[1]
        self._last = (queries, hits)

    @classmethod
    def together(cls, counts: list[CacheCounts]) -> CacheCounts | None:
        """Return the sum; None where none is known."""
        known = [count for count in counts if count.is_known]
        if not known:
            return None
        whole = cls()
        whole.queries, whole.hits = sum(one.queries for one in known), sum(one.hits for one in known)
        return whole
