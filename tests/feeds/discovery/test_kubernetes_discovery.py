"""Replicas by EndpointSlices: the real client over real sockets, against an API server that misbehaves on demand."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest


def port_of(engine) -> int:
    return urlsplit(engine.url).port


def serials(router) -> dict[str, int]:
    return {name: replica.units[0].serial for name, replica in router.fleet.replicas.items()}


async def test_the_service_s_pods_are_replicas_under_their_own_names(follow, cluster, engines, pods, eventually):
    """List, watch, and the Service's own slices alone."""
    first, second = await engines(), await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(first))
    router = follow()
    await eventually(lambda: list(router.fleet.replicas) == ["vllm-0"])
    assert router.fleet.replicas["vllm-0"].url == first.url
    assert router.fleet.replicas["vllm-0"].source == "kubernetes"
    await eventually(lambda: cluster.watches)
    cluster.put("b", pods("vllm-1", "u1"), port=port_of(second))
    await eventually(lambda: set(router.fleet.replicas) == {"vllm-0", "vllm-1"})
    cluster.delete("a")
    await eventually(lambda: set(router.fleet.replicas) == {"vllm-1"})
    assert cluster.selectors == {"kubernetes.io/service-name=vllm"}
    assert cluster.lists == 1
    assert router.value("warmroute_feed_up", feed="kubernetes") == 1
    await eventually(lambda: router.feeds.reasons() == [])


@pytest.mark.parametrize("by_status", [False, True])
async def test_a_version_that_is_too_old_is_listed_anew(follow, cluster, engines, pods, eventually, by_status):
    """410 Gone comes within a watch or as its status; a change in the gap is seen all the same."""
    first, second = await engines(), await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(first))
    router = follow()
    await eventually(lambda: "vllm-0" in router.fleet.replicas and cluster.watches)
    before = serials(router)
    cluster.deaf, cluster.gone_by_status = True, by_status
    cluster.put("b", pods("vllm-1", "u1"), port=port_of(second))
    cluster.compact()
    cluster.deaf = False
    cluster.end_watches()
    await eventually(lambda: "vllm-1" in router.fleet.replicas)
    assert cluster.lists >= 2
    assert serials(router)["vllm-0"] == before["vllm-0"]


async def test_a_watch_that_breaks_off_goes_on(follow, cluster, engines, pods, eventually):
    """A reset connection withdraws nobody, and what happened meanwhile is seen."""
    first, second = await engines(), await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(first))
    router = follow()
    await eventually(lambda: "vllm-0" in router.fleet.replicas and cluster.watches)
    cluster.drop_watches()
    cluster.put("b", pods("vllm-1", "u1"), port=port_of(second))
    await eventually(lambda: set(router.fleet.replicas) == {"vllm-0", "vllm-1"})


async def test_a_watch_that_hangs_is_given_up(follow, cluster, engines, pods, eventually):
    """A connection that is open and says nothing hides changes for its own length alone."""
    first, second = await engines(), await engines()
    cluster.hangs = True
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(first))
    router = follow(watch_s=1)
    await eventually(lambda: "vllm-0" in router.fleet.replicas and cluster.watches)
    cluster.put("b", pods("vllm-1", "u1"), port=port_of(second))
    await eventually(lambda: "vllm-1" in router.fleet.replicas)


async def test_a_delete_that_was_never_told_is_found_by_the_next_list(follow, cluster, engines, pods, eventually):
    """Watches end well and say nothing: every `relist_s` all are listed."""
    engine = await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(engine))
    router = follow(watch_s=1, relist_s=1)
    await eventually(lambda: "vllm-0" in router.fleet.replicas and cluster.watches)
    cluster.deaf = True
    cluster.delete("a")
    await eventually(lambda: not router.fleet.replicas)


async def test_while_the_api_fails_nobody_leaves(follow, cluster, engines, pods, eventually):
    """Errors of every kind freeze membership; the feed is down, and back once the API is."""
    engine = await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(engine))
    router = follow()
    await eventually(lambda: "vllm-0" in router.fleet.replicas and cluster.watches)
    before = serials(router)
    cluster.refuses = 503
    cluster.drop_watches()
    await eventually(lambda: router.value("warmroute_discovery_failures_total", feed="kubernetes") >= 3)
    assert router.value("warmroute_feed_up", feed="kubernetes") == 0
    assert serials(router) == before
    cluster.refuses = 0
    await eventually(lambda: router.value("warmroute_feed_up", feed="kubernetes") == 1)
    assert serials(router) == before


async def test_rights_that_are_missing_are_named(follow, cluster, eventually, caplog):
    """403 says which rights the service account needs."""
    cluster.refuses = 403
    router = follow()
    await eventually(lambda: "`list` and `watch` on endpointslices in namespace team" in caplog.text)
    assert any("vllm" in reason for reason in router.feeds.reasons())


async def test_a_name_that_is_used_again_is_another_replica(follow, cluster, engines, pods, eventually):
    """A StatefulSet's pod comes back under its name, at its address even: nothing is cached there."""
    engine = await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(engine))
    router = follow()
    await eventually(lambda: "vllm-0" in router.fleet.replicas and cluster.watches)
    before = serials(router)["vllm-0"]
    cluster.put("a", pods("vllm-0", "u9"), port=port_of(engine))
    await eventually(lambda: serials(router).get("vllm-0", before) != before)


async def test_an_address_that_is_used_again_is_another_replica(follow, cluster, engines, pods, eventually):
    """The deleted pod is still told beside the one that has its address: the ready one holds it."""
    engine = await engines()
    cluster.put("a", pods("vllm-old", "u0"), port=port_of(engine))
    router = follow()
    await eventually(lambda: "vllm-old" in router.fleet.replicas and cluster.watches)
    cluster.put("a", pods("vllm-old", "u0", ready=False), pods("vllm-new", "u1"), port=port_of(engine))
    await eventually(lambda: list(router.fleet.replicas) == ["vllm-new"])


async def test_a_terminating_pod_drains_and_one_that_is_not_ready_is_down(follow, cluster, engines, pods, eventually):
    """Both keep their place: one finishes what it has, the other may come back."""
    engine, other = await engines(), await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(engine))
    cluster.put("b", pods("vllm-1", "u1"), port=port_of(other))
    router = follow()
    await eventually(lambda: len(router.fleet.replicas) == 2 and cluster.watches)
    before = serials(router)
    cluster.put("a", pods("vllm-0", "u0", ready=False, terminating=True), port=port_of(engine))
    cluster.put("b", pods("vllm-1", "u1", ready=False, serving=False), port=port_of(other))
    await eventually(lambda: router.fleet.replicas["vllm-0"].draining)
    await eventually(lambda: router.fleet.replicas["vllm-1"].down_reason)
    asked = other.health_asked
    await eventually(lambda: other.health_asked >= asked + 2)
    assert router.fleet.replicas["vllm-1"].down_reason == "Kubernetes says that it is not ready"
    cluster.put("b", pods("vllm-1", "u1", ready=None), port=port_of(other))
    await eventually(lambda: router.fleet.replicas["vllm-1"].down_reason is None)
    assert serials(router) == before


async def test_an_evicted_pod_leaves_at_once(follow, cluster, engines, pods, eventually):
    """It is no longer among the endpoints, though something still answers at its address."""
    engine = await engines()
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(engine))
    router = follow()
    await eventually(lambda: "vllm-0" in router.fleet.replicas and cluster.watches)
    cluster.put("a", port=port_of(engine))
    await eventually(lambda: not router.fleet.replicas)


async def test_a_pod_that_answers_no_probe_is_not_in_the_fleet(follow, cluster, engines, pods, eventually):
    """An address alone is no engine: it joins with its first good probe."""
    engine = await engines(healthy=False)
    cluster.put("a", pods("vllm-0", "u0"), port=port_of(engine))
    router = follow()
    await eventually(lambda: engine.health_asked >= 3)
    assert not router.fleet.replicas
    engine.healthy = True
    await eventually(lambda: "vllm-0" in router.fleet.replicas)
