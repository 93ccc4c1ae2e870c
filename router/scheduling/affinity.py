"""Sessions: a request goes where its session's last one went, if that is still the place for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.config_placement import AffinityConfig
from router.scheduling.candidate import Candidate
from router.scheduling.ring import OwnerRing
from router.scheduling.sessions import Sessions

REASON = "session"


class Affinity:
    """What the configuration makes of sessions.

    Under `hard`, a session that is new to this router goes to the owner of its number on the ring, so that several
    routers agree without telling each other. Under `soft` the policy chooses, and routers may have chosen differently.
    """

    def __init__(self, config: AffinityConfig, former: Affinity | None = None) -> None:
        self.config = config
        self.sessions: Sessions = former.sessions if former else Sessions(config.lease_s, config.max_sessions)
        self.sessions.lease_s, self.sessions.max_sessions = config.lease_s, config.max_sessions

    def choose(
        self, session: int, candidates: Sequence[Candidate], picked: Candidate, ring: OwnerRing, now_s: float
    ) -> Candidate:
        """Return the session's own candidate, or the one that the policy picked.

        Args:
            candidates: With their costs.
        """
        unit_id = self.sessions.unit_of(session, now_s)
        own = next((item for item in candidates if item.unit_id == unit_id), None) if unit_id is not None else None
        if self.config.mode == "hard":
            return own or self._owner(session, candidates, ring) or picked
        if own is not None and own.cost <= min(item.cost for item in candidates) + self.config.slack_tokens:
            return own
        return picked

    def went(self, session: int, winner: Candidate, removed: Mapping[str, str], now_s: float) -> None:
        """A request of the session was placed: its lease is renewed, with whom it went to.

        One that went elsewhere because its replica was full does not take the session along.

        Args:
            removed: Replicas that could not be chosen, with the reason.
        """
        unit_id = self.sessions.unit_of(session, now_s)
        if unit_id is None or removed.get(unit_id.rpartition("/")[0] or unit_id) != "full":
            unit_id = winner.unit_id
        self.sessions.renew(session, unit_id, now_s)

    def _owner(self, session: int, candidates: Sequence[Candidate], ring: OwnerRing) -> Candidate | None:
        by_unit = {item.unit_id: item for item in candidates}
        return next((by_unit[name] for name in ring.preference(session) if name in by_unit), None)
