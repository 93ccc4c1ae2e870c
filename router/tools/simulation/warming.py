"""Replicas that join get the hottest beginnings first, as the router's own warmer has it, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router.config_placement import WarmingConfig
from router.fleet.fleet import Fleet
from router.index.hot_prefixes import DEPTHS, HotPrefix, HotPrefixes
from router.tools.simulation.engine import Engine
from router.tools.simulation.requests import Job, Session, Turn
from router.tools.simulation.timeline import Timeline


class Warming:
    """What is computed at replicas that joined. Its requests are in no figure but what engines computed.

    Args:
        hot: What one router was asked: they all see about the same.
        fleets: Of all routers, which hold a replica out until it is warm.
    """

    def __init__(
        self, config: WarmingConfig, hot: HotPrefixes, fleets: Sequence[Fleet], timeline: Timeline, block_tokens: int
    ) -> None:
        self._config = config
        self._hot = hot
        self._fleets = fleets
        self._timeline = timeline
        self._block_tokens = block_tokens
        self._chains: dict[int, Sequence[int]] = {}
        self._left: dict[str, Iterator[HotPrefix]] = {}
        self._running: dict[Job, tuple[str, Engine]] = {}

    def saw(self, names: Sequence[int]) -> None:
        """A prompt of these blocks came: a beginning is known by its last block alone."""
        for blocks in DEPTHS:
            if blocks > len(names):
                break
            self._chains.setdefault(names[blocks - 1], names)

    def joined(self, name: str, engine: Engine) -> None:
        """A replica is announced; one that was there from the start is as warm as the others."""
        if self._fleets[0].replicas[name].held_until_s is None:
            return
        found = self._hot.hottest(self._config.prefixes, self._config.tokens, self._timeline.now_s)
        self._left[name] = iter(found)
        self._timeline.at(self._timeline.now_s + self._config.timeout_s, self._let_in, name)
        for _ in range(self._config.concurrency):
            self._next(name, engine)

    def owns(self, job: Job) -> bool:
        """Whether it is one of these requests."""
        return job in self._running

    def finished(self, job: Job) -> None:
        """One is computed: the next one follows."""
        self._next(*self._running.pop(job))

    def lost(self, job: Job) -> None:
        """Its replica is gone."""
        name, _ = self._running.pop(job)
        self._left.pop(name, None)

    def _next(self, name: str, engine: Engine) -> None:
        prefix = next(self._left.get(name, iter(())), None)
        if prefix is None:
            if not any(each == name for each, _ in self._running.values()):
                self._let_in(name)
            return
        tokens, now_s = len(prefix.token_ids), self._timeline.now_s
        turn = Turn(tokens, 1, tuple(self._chains[prefix.block][: tokens // self._block_tokens]))
        job = Job(-1, Session(now_s, (turn,)), 0, now_s, int(name))
        self._running[job] = name, engine
        engine.submit(job)

    def _let_in(self, name: str) -> None:
        self._left.pop(name, None)
        for fleet in self._fleets:
            if name in fleet.replicas:
                fleet.let_in(fleet.replicas[name])
