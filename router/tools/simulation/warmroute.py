"""The router's own placement as a rule: the very same code, in virtual time.

Each router has its own fleet, index and ledgers, fed with what it would hear: events after a delay, and first tokens of
its own requests. Under `exact` knowledge the ledgers are replaced by the engines' own remaining work: what published
simulations give to every rule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from router.config_placement import PlacementConfig
from router.fleet.facts import EngineLoad, ReplicaFacts, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.fleet.ledger import UnitLoad
from router.fleet.peers import EVERY_S, PeerLoads, row_of
from router.fleet.replica import Unit
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.hot_prefixes import HotPrefixes
from router.index.prefix_index import PrefixIndex
from router.kv.extra_keys import Lora
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placement, Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome
from router.tools.simulation.engine import Engine
from router.tools.simulation.requests import Job
from router.tools.simulation.timeline import Timeline
from router.tools.simulation.warming import Warming

SHARED_AFTER_S = 0.005
"""From a change to the other routers' knowing of it, where the last one is long enough ago: noticed, written, read."""
MELTS_EVERY_S = 0.25
"""How often tokens that melt are told while nothing else changes."""
LOAD_EVERY_S = 0.5
"""How often engines' own figures reach the routers."""


@dataclass  # without slots: where Prompt is compiled they would hide its fields
class NamedPrompt(Prompt):
    """A prompt whose blocks have names already."""

    names: list[int] = dataclasses.field(default_factory=list)

    def chain(self, scheme: Scheme, lora: Lora | None, pause: object = None) -> list[int]:
        """Return the names of its whole blocks."""
        return self.names


class ExactLoad(UnitLoad):
    """A ledger that asks the engine: more than a router can know."""

    __slots__ = ("engine",)

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.shape.prefill_tokens_per_s)
        self.engine = engine

    def backlog_tokens(self, now_s: float) -> float:
        """Prompt tokens that the engine has yet to compute."""
        return self.engine.remaining_tokens()


@dataclass(frozen=True, slots=True)
class Hearing:
    """What routers hear of engines, and how late.

    Attributes:
        exact: Ledgers are the engines' own remaining work, and blocks are known at once.
        events: Whether engines announce blocks; without, routers remember what they sent where.
        event_delay_s: From a block's storing to the index.
        event_loss_share: Share of announcements that are lost for ever, 0 to 1.
        shared_load: Whether routers tell each other what they have in flight, as through Redis.
    """

    exact: bool = False
    events: bool = True
    event_delay_s: float = 0.02
    event_loss_share: float = 0.0
    shared_load: bool = True


class Router:
    """One router's state and placement."""

    def __init__(self, name: str, config: PlacementConfig, hearing: Hearing, rng: Random) -> None:
        self.name = name
        self._hearing = hearing
        self.index = PrefixIndex()
        self.approximate = ApproximateMemory(self.index)
        self.hot = HotPrefixes()
        self.fleet = Fleet(
            prefill_tokens_per_s=config.prefill_tokens_per_s,
            hold_new_s=config.warming.timeout_s if config.warming.join else 0.0,
            on_unit_withdrawn=self._withdrawn,
        )
        self.expected = ExpectedBlocks()
        self.placer = Placer(
            self.fleet, self.index, self.expected, self.approximate, config, rng, unix_time=lambda: 0.0, hot=self.hot
        )
        self.peers = PeerLoads(self.fleet)

    def _withdrawn(self, unit: Unit) -> None:
        self.approximate.drop(unit.slot)
        self.expected.forget(unit.slot)
        self.index.clear(unit.slot)

    def joined(self, replica: int, engine: Engine, now_s: float) -> None:
        """A replica is announced."""
        trust = Trust.EXACT if self._hearing.events else Trust.APPROXIMATE
        scheme = Scheme(HashAlgorithm.SHA256_CBOR, engine.shape.block_tokens)
        name = _name(replica)
        unit = UnitFacts(name, 0, scheme, trust, engine.shape.num_blocks)
        self.fleet.announce(ReplicaFacts(name, f"http://{name}:8000", "redis", (), (unit,)), now_s)
        if self._hearing.exact:
            self.fleet.units[name].in_flight = ExactLoad(engine)

    def tell(self, replica: int, others: Iterable[Router], now_s: float) -> bool:
        """Tell other routers what is in flight at a replica (each is a lane of its own); whether it is anything."""
        unit = self.unit(replica)
        rows = [row_of(unit, now_s)] if unit is not None and unit.in_flight.requests else []
        for other in others:
            if other is not self:
                other.peers.hear(self.name, replica, rows, now_s)
        return bool(rows)

    def unit(self, replica: int) -> Unit | None:
        """Return a replica's unit; None when it has left."""
        return self.fleet.unit(_name(replica))


class OwnPlacement:
    """See `Rule`: one or more routers that share the traffic evenly."""

    def __init__(self, config: PlacementConfig, hearing: Hearing, routers: int, timeline: Timeline, seed: int) -> None:
        self.engines: dict[int, Engine] = {}
        self._hearing = hearing
        self._timeline = timeline
        self._chance = Random(f"{seed}/routers")
        self.routers = [
            Router(str(index), config, hearing, Random(f"{seed}/router/{index}")) for index in range(routers)
        ]
        self._placed: dict[Job, tuple[Router, Placement]] = {}
        self._load_due_s = 0.0
        self._tells = hearing.shared_load and routers > 1 and not hearing.exact
        self._telling: dict[tuple[Router, int], float] = {}
        self._told_s: dict[tuple[Router, int], float] = {}
        self._config = config
        self._warming: Warming | None = None

    def joined(self, replica: int, engine: Engine) -> None:
        """See `Rule`."""
        self.engines[replica] = engine
        for router in self.routers:
            router.joined(replica, engine, self._timeline.now_s)
        if self._config.warming.join:
            if self._warming is None:
                fleets = [router.fleet for router in self.routers]
                block_tokens = engine.shape.block_tokens
                hot = self.routers[0].hot
                self._warming = Warming(self._config.warming, hot, fleets, self._timeline, block_tokens)
            self._warming.joined(_name(replica), engine)

    def left(self, replica: int) -> None:
        """See `Rule`."""
        del self.engines[replica]
        for router in self.routers:
            router.fleet.withdraw(_name(replica))

    def place(self, job: Job) -> int:
        """See `Rule`."""
        now_s = self._timeline.now_s
        if now_s >= self._load_due_s:
            self._report_load(now_s)
        router = self.routers[0] if len(self.routers) == 1 else self._chance.choice(self.routers)
        if self._tells:
            router.peers.melt(now_s)
        turn = job.turn
        engine = next(iter(self.engines.values()))
        names = list(turn.blocks[: turn.prompt_tokens // engine.shape.block_tokens])
        # What is sampled of beginnings takes its tokens along: here they stand for nothing but their number.
        ids = range(turn.prompt_tokens) if self._warming is not None else None
        if self._warming is not None:
            self._warming.saw(names)
        prompt = NamedPrompt(Kind.CHAT, None, True, ids, turn.prompt_tokens, names=names)
        placement = router.placer.place(prompt, str(job.number), now_s)
        self._placed[job] = router, placement
        replica = int(placement.replica.replica_id)
        self._tell_soon(router, replica)
        return replica

    def stored(self, replica: int, blocks: Sequence[int]) -> None:
        """See `Rule`."""
        self._announce(replica, blocks, True)

    def removed(self, replica: int, blocks: Iterable[int]) -> None:
        """See `Rule`."""
        self._announce(replica, blocks, False)

    def first_token(self, job: Job) -> None:
        """See `Rule`."""
        if self._warming is not None and self._warming.owns(job):
            return
        router, placement = self._placed[job]
        router.placer.first_token(placement, self._timeline.now_s)
        self._tell_soon(router, int(placement.replica.replica_id))

    def finished(self, job: Job) -> None:
        """See `Rule`."""
        if self._warming is not None and self._warming.owns(job):
            self._warming.finished(job)
            return
        outcome = Outcome(200, None, job.turn.prompt_tokens, job.cached_tokens, job.turn.output_tokens, job.ttft_s, 0.0)
        self._end(job, outcome)

    def lost(self, job: Job) -> None:
        """See `Rule`."""
        if self._warming is not None and self._warming.owns(job):
            self._warming.lost(job)
            return
        self._end(job, Outcome(None, "upstream_broken", None, None, None, None, 0.0))

    def _end(self, job: Job, outcome: Outcome) -> None:
        router, placement = self._placed.pop(job)
        router.placer.finish(placement, self._timeline.now_s, outcome)
        self._tell_soon(router, int(placement.replica.replica_id))

    def _tell_soon(self, router: Router, replica: int, after_s: float | None = None) -> None:
        """Something changed: have the other routers told of it, after as long as it takes the real ones."""
        if not self._tells:
            return
        key = router, replica
        after_s = SHARED_AFTER_S if after_s is None else after_s
        due_s = max(self._timeline.now_s + after_s, self._told_s.get(key, 0.0) + EVERY_S)
        if due_s < self._telling.get(key, math.inf):
            self._telling[key] = due_s
            self._timeline.at(due_s, self._tell, router, replica, due_s)

    def _tell(self, router: Router, replica: int, due_s: float) -> None:
        key = router, replica
        if self._telling.get(key) != due_s:
            return  # told already: something changed meanwhile
        del self._telling[key]
        self._told_s[key] = self._timeline.now_s
        if router.tell(replica, self.routers, self._timeline.now_s):
            self._tell_soon(router, replica, MELTS_EVERY_S)

    def _announce(self, replica: int, blocks: Iterable[int], stored: bool) -> None:
        hearing = self._hearing
        if hearing.exact:
            self._hear(replica, blocks, stored)
        elif hearing.events and not (hearing.event_loss_share and self._chance.random() < hearing.event_loss_share):
            self._timeline.at(self._timeline.now_s + hearing.event_delay_s, self._hear, replica, blocks, stored)

    def _hear(self, replica: int, blocks: Iterable[int], stored: bool) -> None:
        for router in self.routers:
            unit = router.unit(replica)
            if unit is not None:
                (router.index.store if stored else router.index.remove)(unit.slot, blocks)

    def _report_load(self, now_s: float) -> None:
        self._load_due_s = now_s + LOAD_EVERY_S
        for replica, engine in self.engines.items():
            waiting = engine.waiting()
            load = EngineLoad(engine.running - waiting, waiting, engine.used_share(), now_s)
            for router in self.routers:
                router.fleet.report_load(_name(replica), load)


def _name(replica: int) -> str:
    return f"{replica:04d}"
