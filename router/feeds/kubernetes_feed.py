"""Replicas that are the endpoints of a Service in Kubernetes: list, then watch, and list again whenever in doubt.

What the API says holds: a pod that it no longer names leaves at once, since its address may be another's next. While
it can't be asked nothing changes, and probes alone tell who is alive. Doubt is a version that is too old (410), a watch
that broke off or hung, an answer that can't be read; and every `relist_s`, in case a change was never told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from router.config_discovery import KubernetesSource
from router.feeds.endpoint_slices import members_of
from router.feeds.kubernetes_api import ApiError, GoneError, SliceApi
from router.feeds.probed import Member
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds.kubernetes")
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
SHORT_WATCH_S = 1.0
"""A watch that ends so soon is not asked for again without a pause."""


class ServiceWatch:
    """Follows one Service.

    Args:
        source: The configuration's.
        kubeconfig: How to log in; None: as the pod that this is.
        changed: Called with the replicas after each change.
        heard: Called with whether the API server answers.
        suffix: See `members_of`.
    """

    def __init__(
        self,
        source: KubernetesSource,
        kubeconfig: Path | None,
        changed: Callable[[list[Member]], None],
        heard: Callable[[bool], None],
        metrics: Metrics,
        suffix: str = "",
    ) -> None:
        self._source = source
        self._kubeconfig = kubeconfig
        self._changed = changed
        self._heard = heard
        self._metrics = metrics
        self._suffix = suffix
        self._slices: dict[str, dict[str, Any]] = {}
        self._failures = 0
        self._told: set[str] = set()

    async def run(self) -> None:
        """Follow the Service until cancelled."""
        while True:
            try:
                async with SliceApi(self._source, self._kubeconfig) as api:
                    while True:
                        await self._list_and_watch(api)
            except ApiError as error:
                await self._failed(error)

    async def _list_and_watch(self, api: SliceApi) -> None:
        items, version = await api.list()
        self._slices = {_name(item): item for item in items}
        self._apply()
        self._is_heard()
        # Routers that started together must not list together for ever.
        until_s = time.monotonic() + self._source.relist_s * random.uniform(0.9, 1.1)
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            async for event in api.watch(version):
                version = self._take(event) or version
                self._failures = 0
            if time.monotonic() - began_s < SHORT_WATCH_S:
                await self._pause()
            else:
                self._failures = 0

    def _take(self, event: dict[str, Any]) -> str | None:
        """Apply an event, and return the version to watch from after it."""
        item, kind = event["object"], event.get("type")
        if kind in ("ADDED", "MODIFIED"):
            self._slices.pop(_name(item), None)  # what was told last is last
            self._slices[_name(item)] = item
            self._apply()
        elif kind == "DELETED":
            self._slices.pop(_name(item), None)
            self._apply()
        version = (item.get("metadata") or {}).get("resourceVersion")
        return str(version) if version else None

    def _apply(self) -> None:
        members, problems = members_of(self._slices.values(), self._source, self._suffix)
        for problem in problems:
            if problem not in self._told and len(self._told) < 100:
                self._told.add(problem)
                LOG.warning("endpoints of Service %s can't be used: %s", self._source.service, problem)
        self._changed(members)

    def _is_heard(self) -> None:
        if self._failures:
            LOG.info("endpoints of Service %s are followed again", self._source.service)
        self._heard(True)

    async def _failed(self, error: ApiError) -> None:
        self._metrics.discovery_failed("kubernetes")
        if isinstance(error, GoneError):  # nothing is wrong: it was away for too long
            LOG.info("endpoints of Service %s are listed anew: %s", self._source.service, error)
        else:
            if not self._failures:
                LOG.warning(
                    "endpoints of Service %s can't be followed, and its replicas stay as they are: %s",
                    self._source.service,
                    error,
                )
            self._heard(False)
        await self._pause()

    async def _pause(self) -> None:
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 16))
        self._failures += 1
        await asyncio.sleep(longest_s * random.uniform(0.5, 1))


def _name(item: dict[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name", ""))
