"""Replicas of the configuration, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import time

from router.feeds.health import parse_figures
from router.fleet.facts import Trust

PAGE = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",num_gpu_blocks="777"} 1.0
"""


async def test_a_replica_is_announced_at_once_and_then_learned(run_feeds, engines, eventually):
    """It takes requests before any probe; then models, roots, block size, blocks and load are the engine's."""
    models = [{"id": "tiny", "root": "/m/tiny"}, {"id": "sql", "root": "/m/sql", "parent": "tiny"}]
    engine = await engines(metrics=PAGE, models=models)
    router = run_feeds(replicas=[{"url": engine.url, "id": "a"}])
    await asyncio.sleep(0)
    replica = await eventually(lambda: router.fleet.replicas.get("a"), timeout_s=0.2)
    await eventually(lambda: "sql" in replica.models)
    unit = router.fleet.unit("a/0")
    assert (replica.models["sql"].root, replica.models["sql"].parent) == ("/m/sql", "tiny")
    assert (unit.trust, unit.scheme.block_size, unit.num_blocks) == (Trust.APPROXIMATE, 32, 777)
    assert (unit.load.running, unit.load.waiting, unit.load.kv_usage) == (3, 5, 0.25)
    assert router.feeds.reasons() == []


async def test_a_replica_without_an_id_is_named_by_its_position(run_feeds, eventually):
    """Names reach clients (`x-warmroute-replica`), so none tells an address; a name that was given stays its own."""
    urls = [f"http://127.0.0.1:{port}" for port in (9001, 9002, 9003)]
    router = run_feeds(replicas=[{"url": urls[0]}, {"url": urls[1], "id": "r2"}, {"url": urls[2]}])
    await eventually(lambda: len(router.fleet.replicas) == 3)
    assert {name: replica.url for name, replica in router.fleet.replicas.items()} == {
        "r0": urls[0],
        "r2": urls[1],
        "r2x": urls[2],
    }


async def test_without_prefix_caching_trust_is_none(run_feeds, engines, eventually):
    """An engine that says its prefix cache is off is never credited with a match."""
    engine = await engines(metrics='vllm:cache_config_info{block_size="16",enable_prefix_caching="False"} 1.0\n')
    router = run_feeds(replicas=[{"url": engine.url, "id": "a"}])
    await eventually(lambda: "a" in router.fleet.replicas and router.fleet.unit("a/0").trust is Trust.NONE)


async def test_two_failed_probes_take_it_out_and_one_brings_it_back(run_feeds, engines, eventually):
    """A failing health check marks a replica down; the first good one marks it up."""
    engine = await engines()
    router = run_feeds(replicas=[{"url": engine.url, "id": "a"}])
    await eventually(lambda: router.value("warmroute_probes_total", result="passed") >= 1)
    engine.healthy = False
    await eventually(lambda: router.fleet.replicas["a"].down_reason)
    assert router.value("warmroute_probes_total", result="failed") >= 2
    engine.healthy = True
    await eventually(lambda: router.fleet.replicas["a"].down_reason is None)


async def test_an_engine_that_hangs_is_down_and_delays_no_other(run_feeds, engines, eventually):
    """A probe without an answer is a failed one after its time limit; its load is unknown."""
    slow, good = await engines(hangs=True), await engines(metrics=PAGE)
    router = run_feeds(replicas=[{"url": slow.url, "id": "slow"}, {"url": good.url, "id": "good"}])
    began_s = time.monotonic()
    await eventually(lambda: "good" in router.fleet.replicas and router.fleet.unit("good/0").load)
    assert time.monotonic() - began_s < 1.0
    await eventually(lambda: router.fleet.replicas["slow"].down_reason)
    assert router.fleet.unit("slow/0").load is None


def test_figures_are_read_as_the_engine_writes_them(golden):
    """The names and labels looked for are the recorded engine's; what is missing is unknown, not zero."""
    recorded = json.loads((golden / "engine_http.json").read_text())["metrics"]
    labels = {name: set(rest.rstrip("}").split(",")) for name, _, rest in (item.partition("{") for item in recorded)}
    for line in PAGE.splitlines()[1:]:
        name, _, rest = line.partition("{")
        assert set(re.findall(r"(\w+)=", rest)) <= labels[name]
    figures = parse_figures(PAGE)
    assert (figures.running, figures.waiting, figures.kv_usage) == (3, 5, 0.25)
    assert (figures.block_size, figures.num_blocks, figures.prefix_caching) == (32, 777, True)
    nothing = parse_figures('vllm:num_requests_running NaN\nvllm:cache_config_info{block_size="x"} 1\nrubbish {')
    assert (nothing.running, nothing.waiting, nothing.block_size, nothing.prefix_caching) == (None, None, None, None)
