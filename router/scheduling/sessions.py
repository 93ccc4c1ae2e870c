"""Which session's requests go to which unit: leases that each request renews. Bounded, the longest unused go first."""

from __future__ import annotations

from collections import OrderedDict


class Sessions:
    """The owner of leases.

    Attributes:
        lease_s: Seconds that a session is kept without a request.
        max_sessions: How many are kept.
    """

    def __init__(self, lease_s: float, max_sessions: int) -> None:
        self.lease_s = lease_s
        self.max_sessions = max_sessions
        self._leases: OrderedDict[int, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def unit_of(self, session: int, now_s: float) -> str | None:
        """Return the unit that a session is with; None where it has none, or its lease ran out."""
        lease = self._leases.get(session)
        if lease is None or now_s >= lease[1]:
            return None
        return lease[0]

    def renew(self, session: int, unit_id: str, now_s: float) -> None:
        """A request of the session went to a unit."""
        leases = self._leases
        leases[session] = (unit_id, now_s + self.lease_s)
        leases.move_to_end(session)
        while len(leases) > self.max_sessions:
            leases.popitem(last=False)
        # Leases are in the order of their ends, as long as they are equally long.
        first = next(iter(leases))
        if leases[first][1] <= now_s:
            del leases[first]
