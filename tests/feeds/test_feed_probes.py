"""Engines of which agents say nothing new are asked themselves, and what can't be reached is told; a real Valkey."""

from __future__ import annotations

from router.feeds import watch
from router.feeds.unleased import EMPTY_PATIENCE_S, MissingLeases
from router.kv.keys import Keys


async def test_an_engine_that_hangs_with_a_prompt_waiting_loses_its_traffic(
    redis_url, writer, run_feeds, engines, eventually, monkeypatch
):
    """Its lease holds and its load is told, but a prompt waits for its first byte: two failed probes take it out."""
    monkeypatch.setattr(watch, "WAITED_S", 0.3)
    monkeypatch.setattr(watch, "LOAD_SILENCE_S", 60.0)
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    router = run_feeds(redis=redis_url)
    await eventually(lambda: engine.health_asked)
    await r0.heartbeat()
    await eventually(lambda: router.fleet.unit("r0/0").load is not None)
    engine.hangs = True
    asked = engine.health_asked
    router.fleet.unit("r0/0").in_flight.reserve(1000, router.feeds._clock())
    await eventually(lambda: router.fleet.replicas["r0"].down_reason == "fails its health probes", timeout_s=4)
    assert engine.health_asked >= asked + 2
    engine.hangs = False
    await eventually(lambda: router.fleet.replicas["r0"].down_reason is None, timeout_s=3)


async def test_an_engine_whose_load_is_told_and_that_answers_is_left_alone(
    redis_url, writer, run_feeds, engines, eventually, monkeypatch
):
    """Asked once as it joins; not again while its agent tells its load and nothing waits for long."""
    monkeypatch.setattr(watch, "PROBE_EACH_S", 0.05)
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    await r0.heartbeat()
    await eventually(lambda: router.fleet.unit("r0/0").load is not None)
    await eventually(lambda: engine.health_asked)
    asked = engine.health_asked
    for block in range(20):
        await r0.store(block)
        await r0.heartbeat()
        await r0.lease(url=engine.url)
        await eventually(lambda block=block: block in router.held("r0/0"))
    assert engine.health_asked <= asked + 1


async def test_an_engine_that_falls_silent_is_asked(redis_url, writer, run_feeds, engines, eventually, monkeypatch):
    """No load is told any more while the lease still holds: the engine is asked, and out when it hangs."""
    monkeypatch.setattr(watch, "LOAD_SILENCE_S", 0.3)
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    router = run_feeds(redis=redis_url)
    await eventually(lambda: engine.health_asked)
    await r0.heartbeat()
    engine.hangs = True
    await eventually(lambda: router.fleet.replicas["r0"].down_reason, timeout_s=4)


async def test_an_advertised_address_that_cant_be_reached_is_told(
    redis_url, writer, run_feeds, unused_port, eventually, caplog
):
    """Within two probes of its joining the log and the replica's state name the address and the option; once."""
    url = f"http://127.0.0.1:{unused_port}"
    await writer("r0/0").register(url=url)
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas and router.fleet.replicas["r0"].down_reason, timeout_s=3)
    failed = router.value("warmroute_probes_total", result="failed")
    reason = router.fleet.replicas["r0"].down_reason
    assert reason == f"can't be reached at {url}; check --advertise of its agent"
    await eventually(lambda: router.value("warmroute_probes_total", result="failed") >= failed + 2)
    assert caplog.text.count(reason) == 1


def test_a_unit_that_is_renewed_without_a_lease_is_told_of(caplog):
    """Its agent lives and writes its lease elsewhere: once, with the key and the option. A dead one is not told of."""
    missing, leases = MissingLeases(Keys("wr", 8)), {"a/0": None, "dead/0": None, "good/0": b"lease"}
    for second in range(10):
        missing.look({"a/0": 100.0 + second // 3, "dead/0": 90.0, "good/0": 100.0 + second}, leases, float(second))
    (record,) = caplog.records
    assert record.unit == "a/0"
    assert Keys("wr", 8).lease("a/0") in record.getMessage()
    assert "--lanes must be this router's redis.lanes, 8" in record.getMessage()


def test_a_redis_without_agents_is_told_of(caplog):
    """After some patience the log says where the router looks, once; with an agent there it never does."""
    nobody, somebody = MissingLeases(Keys("prod", 16)), MissingLeases(Keys("prod", 16))
    for second in range(int(EMPTY_PATIENCE_S) + 5):
        nobody.look({}, {}, float(second))
        somebody.look({"a/0": 1.0} if second == 0 else {}, {"a/0": b"lease"}, float(second))
    (record,) = caplog.records
    assert "{prod}:units" in record.getMessage()
    assert "--namespace prod" in record.getMessage()


async def test_a_router_that_knows_of_dead_engines_alone_is_not_ready(
    redis_url, writer, run_feeds, engines, eventually
):
    """It starts into an outage: ready once one engine that leases tell of has answered, and for good from there."""
    engine = await engines()
    dead, alive = writer("r0/0"), writer("r1/0")
    await dead.register(url="http://127.0.0.1:1")
    router = run_feeds(redis=redis_url)
    await eventually(lambda: router.feeds.redis is not None and router.feeds.redis.ready.is_set())
    assert router.feeds.reasons() == ["redis: no engine of its units has answered yet"]
    await alive.register(url=engine.url)
    await eventually(lambda: router.feeds.reasons() == [])
    engine.healthy = False
    await eventually(lambda: router.fleet.replicas["r1"].down_reason is not None)
    assert router.feeds.reasons() == []


async def test_who_joins_is_asked_at_once(redis_url, writer, run_feeds, engines, eventually, monkeypatch):
    """Without waiting for the next round of probes."""
    monkeypatch.setattr(watch, "PROBE_EACH_S", 3_600.0)
    engine = await engines()
    router = run_feeds(redis=redis_url)
    await eventually(lambda: router.feeds.redis is not None and router.feeds.redis.ready.is_set())
    await writer("r0/0").register(url=engine.url)
    await eventually(lambda: engine.health_asked)
    await eventually(lambda: router.feeds.reasons() == [])
