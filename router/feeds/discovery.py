"""All that `discovery` names, as one feed. Each source has a task of its own; their replicas are probed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from router.background import run_again
from router.config import RouterConfig
from router.config_discovery import DiscoveryConfig, DnsSource, KubernetesSource
from router.feeds.endpoint_slices import unique
from router.feeds.kubernetes_feed import ServiceWatch
from router.feeds.probed import Member, ProbedReplicas, Probing
from router.kv.addresses import AllowedAddresses

LOG = logging.getLogger("warmroute.feeds.discovery")
MAX_REFUSED_TOLD = 100
Key = tuple[DnsSource | KubernetesSource, Path | None, str]
"""What a source's task was started with: another key is another task."""


class Discovery:
    """Finds replicas without an agent.

    Args:
        config: `discovery`; `registration.allow`, which holds for what is found too; and `models`, as `StaticFeed` has
            it.
    """

    def __init__(self, config: RouterConfig, probing: Probing) -> None:
        self._config = config
        self._metrics = probing.metrics
        self._allowed = AllowedAddresses(config.registration.allow)
        self._probed = {feed: ProbedReplicas(feed, config.models, probing) for feed in ("kubernetes", "dns")}
        self._members: dict[Key, list[Member]] = {}
        self._up: dict[Key, bool] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Follow every source until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for probed in self._probed.values():
                self._group.create_task(probed.run())
            self._follow_all()
            await asyncio.Event().wait()

    def configure(self, config: RouterConfig) -> None:
        """Follow other sources; those that are in both configurations go on as they are."""
        self._config = config
        for probed in self._probed.values():
            probed.models = config.models
        self._follow_all()

    def reasons(self) -> list[str]:
        """Why the first round is not complete."""
        silent = [_title(key) for key in _keys(self._config.discovery) if key not in self._members]
        reasons = [f"discovery: {title} was not heard yet" for title in silent]
        return reasons + [reason for probed in self._probed.values() for reason in probed.reasons()]

    def _follow_all(self) -> None:
        if self._group is None:
            return
        wanted = _keys(self._config.discovery)
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
            self._members.pop(key, None)
            self._up.pop(key, None)
            self._gather(_feed(key))
        for key in wanted:
            if key not in self._tasks:
                self._tasks[key] = self._group.create_task(run_again(f"discovery of {_title(key)}", self._watch(key)))

    def _watch(self, key: Key) -> Callable[[], Awaitable[None]]:
        source, kubeconfig, suffix = key
        if isinstance(source, DnsSource):
            # Imported where it is used: dnspython takes 50 ms to load, and most fleets do not need it.
            from router.feeds.dns_feed import DnsWatch

            passes = self._probed["dns"].passes
            watch = DnsWatch(source, partial(self._found, key), passes, partial(self._heard, key), self._metrics)
            return watch.run
        found, heard = partial(self._found, key), partial(self._heard, key)
        return ServiceWatch(source, kubeconfig, found, heard, self._metrics, suffix).run

    def _found(self, key: Key, members: list[Member]) -> None:
        if self._tasks.get(key) is None:
            return  # it was cancelled, and this is its last word
        self._members[key] = [member for member in members if self._is_allowed(member)]
        self._gather(_feed(key))

    def _gather(self, feed: str) -> None:
        found = [member for key, members in self._members.items() if _feed(key) == feed for member in members]
        self._probed[feed].set_members(unique(found))
        ups = [up for key, up in self._up.items() if _feed(key) == feed]
        if ups:
            self._metrics.feed_changed(feed, up=all(ups))

    def _heard(self, key: Key, up: bool) -> None:
        self._up[key] = up
        self._gather(_feed(key))

    def _is_allowed(self, member: Member) -> bool:
        if self._allowed.allows(member.url):
            return True
        if member.url not in self._refused and len(self._refused) < MAX_REFUSED_TOLD:
            self._refused.add(member.url)
            LOG.warning("an address is not in registration.allow and is not used", extra={"replica": member.replica_id})
        return False


def _keys(config: DiscoveryConfig) -> list[Key]:
    # Pods of two namespaces may bear one name; in one namespace names are the pods' own, as agents have them.
    several = len({source.namespace for source in config.kubernetes}) > 1
    keys: list[Key] = [(source, None, "") for source in config.dns]
    for source in config.kubernetes:
        suffix = f".{source.namespace}" if several and source.namespace else ""
        keys.append((source, config.kubeconfig, suffix))
    return keys


def _feed(key: Key) -> str:
    return "dns" if isinstance(key[0], DnsSource) else "kubernetes"


def _title(key: Key) -> str:
    source = key[0]
    return f"dns {source.name}" if isinstance(source, DnsSource) else f"kubernetes Service {source.service}"
