"""Replicas that join are warmed before traffic, those that drain leave nothing hot behind; engines are a fake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from router.config_placement import PlacementConfig
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.hot_prefixes import HotPrefix, HotPrefixes
from router.index.prefix_index import PrefixIndex
from router.kv.extra_keys import Lora
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.request.prompt import Kind, Prompt
from router.request.reasons import Reason
from router.scheduling.decision import Outcome
from router.telemetry.metrics import Metrics
from router.warming.engine_requests import Computed
from router.warming.warmer import Warmer

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


class FakeEngines:
    """Answers as engines do, as it is told; what it computes is stored as their events would."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.asked: list[tuple[str, HotPrefix]] = []
        self.at_once = self.most_at_once = 0
        self.status: int | None = 200
        self.pause: asyncio.Event | None = None

    async def compute(self, url: str, rank: int | None, prefix: HotPrefix, request_id: str) -> Computed:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.asked.append((url, prefix))
        try:
            if self.pause is not None:
                await self.pause.wait()
            await asyncio.sleep(0)
            if self.status == 200:
                name = url.removeprefix("http://").partition(":")[0]
                prompt = Prompt(Kind.COMPLETION, prefix.model, False, prefix.token_ids, 0, salt=prefix.salt)
                self.house.holds(name, prompt)
            return Computed(self.status, 0 if self.status == 200 else None)
        finally:
            self.at_once -= 1


class House:
    """Two replicas behind a placer, and a warmer over them."""

    def __init__(self, **warming: Any) -> None:
        self.now_s = 0.0
        self.index = PrefixIndex()
        self.approximate = ApproximateMemory(self.index)
        self.config = PlacementConfig.model_validate({"warming": {"join": True, "drain": True, **warming}})
        self.fleet = Fleet(hold_new_s=self.config.warming.timeout_s)
        self.hot = HotPrefixes()
        self.metrics = Metrics()
        expected, rng = ExpectedBlocks(), random.Random(1)
        self.placer = Placer(
            self.fleet, self.index, expected, self.approximate, self.config, rng, lambda: 0.0, hot=self.hot
        )
        self.engines = FakeEngines(self)
        self.warmer = Warmer(
            self.config.warming,
            self.fleet,
            self.index,
            self.placer,
            self.hot,
            self.engines,
            self.metrics,
            lambda: self.now_s,
        )
        for name in ("r0", "r1"):
            self.join(name)
        self.now_s = 100.0

    def join(self, name: str, models: tuple[str, ...] = ("m", "ad"), trust: Trust = Trust.EXACT) -> None:
        served = tuple(ServedModel(each, each, "m" if each == "ad" else None) for each in models)
        unit = UnitFacts(f"{name}/0", 0, SCHEME, trust, 10_000)
        self.fleet.announce(ReplicaFacts(name, f"http://{name}:80", "redis", served, (unit,)), self.now_s)

    def holds(self, name: str, prompt: Prompt) -> None:
        lora = Lora("ad", "ad") if prompt.model == "ad" else None
        self.index.store(self.fleet.units[f"{name}/0"].slot, prompt.chain(SCHEME, lora))

    def came(self, name: str, tokens: int = 320, times: int = 4, **facts: Any) -> Prompt:
        """Prompts that begin alike came, and are held where they went."""
        rng = random.Random(name)
        common = [rng.randrange(50_000) for _ in range(tokens)]
        model = facts.pop("model", "m")
        for number in range(times):
            ids = [*common, *([number] * 40)]
            prompt = Prompt(Kind.CHAT, model, True, ids, len(ids), **facts)
            placement = self.placer.place(prompt, "q", self.now_s)
            self.holds(placement.replica.replica_id, prompt)
            self.placer.finish(placement, self.now_s, Outcome(200, None, None, None, None, None, 0.1))
        return Prompt(Kind.CHAT, "m", True, common, tokens, **facts)

    def held(self, name: str, prompt: Prompt) -> bool:
        """Whether a replica holds nearly all of it."""
        chain = prompt.chain(SCHEME, None)
        return self.index.leading(self.fleet.units[f"{name}/0"].slot, chain) > 0.8 * len(chain)

    def states(self) -> dict[str, str]:
        return {name: replica.state(self.now_s).value for name, replica in self.fleet.replicas.items()}

    async def work(self) -> None:
        """Do what there is to do now."""
        await asyncio.gather(*(work() for work in self.warmer.look()))

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"warmroute_{name}_total", labels) or 0.0


async def test_a_replica_that_joins_is_warm_before_it_takes_requests() -> None:
    """Held out until its fleet's hottest beginnings are there; then prompts that begin so match there."""
    house = House()
    prompts = [house.came(f"system {number}") for number in range(3)]
    house.join("r9")
    assert house.states()["r9"] == "warming"
    assert house.placer.explain(prompts[0], house.now_s).removed == {"r9": "warming"}
    await house.work()
    assert house.states()["r9"] == "ready"
    assert {url for url, _ in house.engines.asked} == {"http://r9:80"}
    for prompt in prompts:
        decision = house.placer.explain(prompt, house.now_s)
        [there] = [item for item in decision.candidates if item.unit_id == "r9/0"]
        assert there.matched_tokens >= 304
    assert house.counted("warming_requests", purpose="join", result="computed") == len(house.engines.asked)
    assert house.counted("warming_tokens", purpose="join") == sum(len(p.token_ids) for _, p in house.engines.asked)
    assert [unit.in_flight.requests for unit in house.fleet.units.values()] == [0, 0, 0]
    await house.work()
    assert house.states()["r9"] == "ready"


async def test_what_is_sent_is_bounded() -> None:
    """In number, tokens and at once."""
    house = House(prefixes=5, tokens=1_300, concurrency=2)
    for number in range(20):
        house.came(f"system {number}")
    house.join("r9")
    await house.work()
    assert len(house.engines.asked) == 4
    assert sum(prefix.fresh_tokens for _, prefix in house.engines.asked) <= 1_300
    assert house.engines.most_at_once == 2


async def test_adapters_and_salts_go_along_or_the_beginning_is_left_out() -> None:
    """An adapter that the new one does not serve, media, and what was not understood are not sent."""
    house = House()
    house.came("adapter", model="ad")
    house.came("salted", salt="tenant's")
    house.came("guessed", reason=Reason.DEADLINE)
    house.join("r8", models=("m",))
    house.join("r9")
    await house.work()
    sent = sorted(((url, prefix.model, prefix.salt) for url, prefix in house.engines.asked), key=str)
    assert sent == [("http://r8:80", "m", "tenant's"), ("http://r9:80", "ad", None), ("http://r9:80", "m", "tenant's")]


async def test_one_that_refuses_or_is_not_reached_takes_traffic_as_it_is() -> None:
    """After three failures in a row nothing more is sent."""
    house = House(concurrency=1)
    for number in range(10):
        house.came(f"system {number}")
    for name, status, result in (("r8", None, "failed"), ("r9", 404, "refused")):
        house.engines.asked.clear()
        house.engines.status = status
        house.join(name)
        await house.work()
        assert house.states()[name] == "ready"
        assert len(house.engines.asked) == 3
        assert house.counted("warming_requests", purpose="join", result=result) == 3
    assert house.counted("warming_tokens", purpose="join") == 0


async def test_one_that_takes_too_long_takes_traffic_by_then(eventually: Callable[..., Any]) -> None:
    """Also when nobody looks: the hold ends by itself, and what was asked is given back."""
    house = House(timeout_s=0.2)
    house.came("system")
    house.engines.pause = asyncio.Event()
    house.join("r9")
    working = asyncio.create_task(house.work())
    await eventually(lambda: house.engines.asked)
    assert house.states()["r9"] == "warming"
    assert house.fleet.units["r9/0"].in_flight.requests == 1
    house.now_s += 0.3
    assert house.states()["r9"] == "ready"
    await working
    assert house.fleet.replicas["r9"].held_until_s is None
    assert house.fleet.units["r9/0"].in_flight.requests == 0


async def test_a_warming_replica_is_better_than_none() -> None:
    """Where all others are gone it takes requests at once, and the fleet counts as ready."""
    house = House()
    prompt = house.came("system")
    house.join("r9")
    for name in ("r0", "r1"):
        house.fleet.mark_down(name, "gone")
    assert house.placer.explain(prompt, house.now_s).winner == "r9/0"
    assert house.fleet.ready_count(house.now_s) == 1


async def test_what_a_draining_replica_alone_holds_gets_a_new_home() -> None:
    """What others hold too is not computed again; it happens once, and again when it drains another time."""
    house = House()
    prompts = [house.came(f"system {number}", tokens=640) for number in range(8)]
    homes = {name: [p for p in prompts if house.held(name, p)] for name in ("r0", "r1")}
    leaving = max(homes, key=lambda name: len(homes[name]))
    [staying] = {"r0", "r1"} - {leaving}
    common = homes[leaving][0]
    house.holds(staying, common)
    house.fleet.mark_draining(leaving)
    await house.work()
    assert {url for url, _ in house.engines.asked} == {f"http://{staying}:80"}
    assert len(house.engines.asked) == len(homes[leaving]) - 1
    assert all(house.held(staying, prompt) for prompt in prompts)
    assert house.counted("warming_requests", purpose="drain", result="computed") == len(house.engines.asked)
    await house.work()
    assert len(house.engines.asked) == len(homes[leaving]) - 1


@pytest.mark.parametrize("warming", [{"join": False}, {"drain": False}])
async def test_each_is_for_the_operator_to_ask_for(warming: dict[str, bool]) -> None:
    """One without the other; and without both no tokens are kept."""
    house = House(**warming)
    prompt = house.came("system", tokens=640)
    if not warming.get("join", True):
        house.fleet.configure(prefill_tokens_per_s=1, eject_after=1, eject_s=1, eject_max_s=1, max_in_flight=0)
        house.join("r9")
        assert house.states()["r9"] == "ready"
    else:
        house.fleet.mark_draining("r0" if house.held("r0", prompt) else "r1")
    await house.work()
    assert house.engines.asked == []
    quiet = House(join=False, drain=False)
    quiet.came("system")
    assert len(quiet.hot) == 0


async def test_the_router_s_own_requests_are_nobody_s_traffic() -> None:
    """They are not counted as hot, or the same beginnings would stay hot for ever."""
    house = House()
    house.came("system")
    before = [prefix.uses for prefix in house.hot.hottest(9, 10**6, house.now_s)]
    house.join("r9")
    await house.work()
    assert house.engines.asked
    assert [prefix.uses for prefix in house.hot.hottest(9, 10**6, house.now_s)] == before
