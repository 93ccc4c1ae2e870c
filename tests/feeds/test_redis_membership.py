"""Who is in the fleet while leases come and go, and while Redis is lost, silent or emptied; a real Valkey."""

from __future__ import annotations

import logging
import time

import pytest

from router.fleet.facts import Trust

BAD_URL = "redis://:RP-333@h:99999999/0"


async def test_goodbye_takes_a_replica_out_for_good(redis_url, writer, run_feeds, eventually):
    """A goodbye withdraws a replica at once and frees its blocks; a new life is let in."""
    r0 = writer("r0/0")
    await r0.register()
    router = run_feeds(redis=redis_url)
    await r0.store(1)
    await eventually(lambda: router.held("r0/0") == {1})
    await r0.retire()
    await eventually(lambda: "r0" not in router.fleet.replicas, timeout_s=0.9)
    await writer("r1/0").register(url="http://127.0.0.1:10")
    await eventually(lambda: "r1" in router.fleet.replicas)  # a round of leases has passed
    assert "r0" not in router.fleet.replicas
    await writer("r0/0", epoch=2).register()
    await eventually(lambda: "r0" in router.fleet.replicas)


@pytest.mark.parametrize("secret", [None, b"another secret of 16"])
async def test_a_lease_without_the_right_signature_is_refused(redis_url, writer, run_feeds, eventually, caplog, secret):
    """With a secret set, an unsigned or wrongly signed lease brings no replica; it is said once and counted."""
    wrong, right = writer("bad/0", secret=secret), writer("good/0", secret=b"the secret of sixteen")
    await wrong.register(url="http://127.0.0.1:9001")
    await right.register(url="http://127.0.0.1:9002")
    router = run_feeds(redis=redis_url, registration={"secret": "the secret of sixteen"})
    await eventually(lambda: "good" in router.fleet.replicas)
    assert list(router.fleet.replicas) == ["good"]
    assert router.value("warmroute_feed_refused_leases_total", reason="signature") == 1
    assert "the secret of sixteen" not in caplog.text


async def test_a_lease_for_an_address_that_is_not_allowed_is_refused(redis_url, writer, run_feeds, eventually):
    """`registration.allow` keeps prompts inside: other addresses never join."""
    await writer("out/0").register(url="http://169.254.169.254")
    await writer("in/0").register(url="http://10.1.2.3:8000")
    await writer("named/0").register(url="http://pod-0.engines.svc:8000")
    router = run_feeds(redis=redis_url, registration={"allow": ["10.0.0.0/8", "*.engines.svc"]})
    await eventually(lambda: len(router.fleet.replicas) == 2)
    assert set(router.fleet.replicas) == {"in", "named"}


async def test_the_newest_life_of_a_name_holds(redis_url, writer, run_feeds, eventually):
    """Two pods may bear one replica's name during a rollout: requests go to the one that began last."""
    await writer("r0/0", epoch=5).register(url="http://127.0.0.1:9001")
    router = run_feeds(redis=redis_url)
    await eventually(lambda: "r0" in router.fleet.replicas)
    await writer("r0/1", epoch=9).register(url="http://127.0.0.1:9002", rank=1)
    await eventually(lambda: router.fleet.replicas["r0"].address[1] == 9002)
    assert [unit.unit_id for unit in router.fleet.replicas["r0"].units] == ["r0/1"]


async def test_redis_cut_and_black_holed_changes_nobody(
    redis_url, writer, run_feeds, relay, engines, eventually, caplog
):
    """While Redis is cut or silent, membership and index stay; within 5 s of its return events are applied.

    The loss is logged once, however many tries follow.
    """
    caplog.set_level(logging.INFO, "warmroute")
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    router = run_feeds(redis=f"redis://127.0.0.1:{relay.port}/0", lease_s=0.5)
    await r0.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    relay.cut()
    await eventually(lambda: not router.feeds.redis.connected)
    asked = engine.health_asked
    await eventually(lambda: engine.health_asked >= asked + 2)
    relay.black_hole()
    await eventually(lambda: engine.health_asked >= asked + 4)
    await r0.store(3)
    assert router.fleet.unit("r0/0").trust is Trust.EXACT
    assert router.held("r0/0") == {1, 2}
    relay.restore()
    began_s = time.monotonic()
    await eventually(lambda: router.held("r0/0") == {1, 2, 3}, timeout_s=6)
    assert time.monotonic() - began_s < 5
    assert caplog.text.count("Redis is lost") == 1
    assert caplog.text.count("Redis is back") == 1
    assert router.value("warmroute_feed_losses_total") == 1


async def test_a_redis_that_goes_silent_is_noticed(redis_url, writer, run_feeds, relay, eventually):
    """A connection that stays open and says nothing is given up within seconds."""
    await writer("r0/0").register()
    router = run_feeds(redis=f"redis://127.0.0.1:{relay.port}/0")
    await eventually(router.feeds.reasons)
    await eventually(lambda: router.feeds.redis is not None and router.feeds.redis.connected)
    relay.black_hole()
    await eventually(lambda: not router.feeds.redis.connected, timeout_s=5)
    assert "r0" in router.fleet.replicas


async def test_a_dead_engine_leaves_rotation_while_redis_is_lost(
    redis_url, writer, run_feeds, relay, engines, eventually
):
    """Without Redis the router asks engines itself: two failed probes take one out, a good one brings it back."""
    good, bad = await engines(), await engines()
    await writer("good/0").register(url=good.url)
    await writer("bad/0").register(url=bad.url)
    router = run_feeds(redis=f"redis://127.0.0.1:{relay.port}/0")
    await eventually(lambda: len(router.fleet.replicas) == 2)
    bad.healthy = False
    relay.cut()
    await eventually(lambda: router.fleet.replicas["bad"].down_reason)
    assert router.fleet.replicas["good"].down_reason is None
    bad.healthy = True
    await eventually(lambda: router.fleet.replicas["bad"].down_reason is None)


async def test_an_emptied_redis_drops_nobody(redis, redis_url, writer, run_feeds, engines, eventually):
    """After FLUSHALL replicas and trust stay; agents register anew and go on, and their blocks follow."""
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    router = run_feeds(redis=redis_url, lease_s=0.6)
    await r0.store(1, 2)
    await eventually(lambda: router.held("r0/0") == {1, 2})
    asked = engine.health_asked
    await redis.flushall()
    await eventually(lambda: engine.health_asked >= asked + 3)
    assert router.fleet.unit("r0/0").trust is Trust.EXACT
    assert router.held("r0/0") == {1, 2}
    r0.epoch = 2
    r0.sequence = 0
    await r0.register(url=engine.url)
    await r0.store(4)
    await eventually(lambda: router.held("r0/0") == {4})


async def test_a_missing_agent_lowers_trust_and_no_more(redis_url, writer, run_feeds, engines, eventually):
    """A lease that runs out while its engine answers: APPROXIMATE with the reason; EXACT again with the agent."""
    engine = await engines()
    r0 = writer("r0/0")
    await r0.register(url=engine.url)
    await writer("r1/0").register(url="http://127.0.0.1:9")
    router = run_feeds(redis=redis_url, lease_s=0.8)
    await r0.store(1)
    await eventually(lambda: router.held("r0/0") == {1})
    await r0.unregister()
    await eventually(lambda: router.fleet.unit("r0/0").trust is Trust.APPROXIMATE)
    await eventually(lambda: engine.health_asked >= 2)
    unit = router.fleet.unit("r0/0")
    assert unit.reason == "its agent is missing"
    assert unit.replica.down_reason is None
    await r0.register(url=engine.url)
    await eventually(lambda: router.fleet.unit("r0/0").trust is Trust.EXACT)
    await r0.store(2)
    await eventually(lambda: router.held("r0/0") == {1, 2})


async def test_a_dead_engine_without_lease_is_withdrawn(redis_url, writer, run_feeds, eventually):
    """Lease gone and probes failing: down within probes, and in bounded time its blocks are gone too."""
    r0 = writer("r0/0")
    await r0.register(url="http://127.0.0.1:9")
    await writer("r1/0").register(url="http://127.0.0.1:10")
    router = run_feeds(redis=redis_url, lease_s=0.8)
    await r0.store(*range(1000))
    await eventually(lambda: len(router.held("r0/0")) == 1000)
    slot = router.fleet.unit("r0/0").slot
    await r0.unregister()
    await eventually(lambda: "r0" not in router.fleet.replicas or router.fleet.replicas["r0"].down_reason)
    await eventually(lambda: "r0" not in router.fleet.replicas, timeout_s=15)
    assert router.index.blocks_of(slot) == 0
    assert "r1" in router.fleet.replicas


@pytest.mark.parametrize("form", ["http://127.0.0.1:{port}/", "http://localhost:{port}", "HTTP://127.0.0.1:{port}"])
async def test_an_agent_and_the_configuration_mean_one_replica(redis_url, writer, run_feeds, engines, eventually, form):
    """Another spelling of a configured address is that replica; the agent's facts hold while it is there."""
    engine = await engines()
    port = engine.url.rpartition(":")[2]
    router = run_feeds(redis=redis_url, replicas=[{"url": engine.url}])
    await eventually(lambda: list(router.fleet.replicas) == ["r0"])
    r0 = writer("agent/0")
    await r0.register(url=form.format(port=port))
    await r0.store(1)
    await eventually(lambda: router.held("agent/0") == {1})
    assert list(router.fleet.replicas) == ["agent"]
    await r0.retire()
    await eventually(lambda: list(router.fleet.replicas) == ["r0"])


async def test_redis_down_at_the_start_is_said_once_without_its_password(run_feeds, eventually, caplog, unused_port):
    """The log names the trouble and never the password; readiness says that Redis was not reached."""
    router = run_feeds(redis=f"redis://:RP-333@127.0.0.1:{unused_port}/0")
    await eventually(lambda: "not reached" in caplog.text)
    await eventually(lambda: any("(" in reason for reason in router.feeds.reasons()))
    assert "RP-333" not in caplog.text + str(router.feeds.reasons())
    assert caplog.text.count("not reached") == 1


async def test_a_redis_url_that_slips_through_ends_no_other_feed(run_feeds, engines, eventually):
    """What the client refuses at run time is said without its password; configured replicas are probed all the same."""
    engine = await engines()
    router = run_feeds(redis="redis://127.0.0.1:1/0", replicas=[{"url": engine.url}])
    router.feeds._config.redis.__dict__["url"] = BAD_URL  # past the configuration's check, before the feed begins
    await eventually(lambda: any("redis.url can't be used" in reason for reason in router.feeds.reasons()))
    await eventually(lambda: engine.health_asked >= 2)
    assert not router.task.done()
    assert "RP-333" not in str(router.feeds.reasons())
