"""Replicas of the configuration: announced at once, then asked what they are (`probed.py`)."""

from __future__ import annotations

from router.config import RouterConfig
from router.feeds.probed import Member, ProbedReplicas, Probing
from router.kv.addresses import normalised_url


class StaticFeed:
    """Probes the replicas that the configuration names.

    Args:
        config: `replicas`, and `models` for names and block sizes until engines tell theirs.
    """

    def __init__(self, config: RouterConfig, probing: Probing) -> None:
        self._probed = ProbedReplicas("static", config.models, probing, is_certain=True)
        self._config = config

    def announce_all(self) -> None:
        """Put every configured replica into the fleet, before anything is known of it."""
        self._probed.set_members(_configured(self._config))

    def configure(self, config: RouterConfig) -> None:
        """Follow the replicas of another configuration; those that are in both go on as they are."""
        self._config = config
        self._probed.models = config.models
        self.announce_all()

    def reasons(self) -> list[str]:
        """Why the first round is not complete: replicas that were not asked yet."""
        return self._probed.reasons()

    async def run(self) -> None:
        """Probe each replica every second or so, until cancelled."""
        await self._probed.run()


def _configured(config: RouterConfig) -> list[Member]:
    """Return the replicas; one without an id is named `rN` by its position: clients see names, never addresses."""
    taken = {replica.id for replica in config.replicas}
    configured = []
    for position, replica in enumerate(config.replicas):
        name = replica.id or f"r{position}"
        while not replica.id and name in taken:
            name += "x"
        taken.add(name)
        configured.append(Member(name, normalised_url(replica.url)))
    return configured
