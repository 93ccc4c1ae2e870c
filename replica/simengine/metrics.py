"""vLLM's metrics, for those that a router or an operator of one reads."""

from __future__ import annotations

import time

from replica.simengine.engine import Engine
from replica.simengine.settings import Settings

STARTED_S = time.time()
"""When this process began, as the engine's counters tell it (`..._created`)."""
_GAUGES = {
    "vllm:num_requests_running": "Requests in the running batch.",
    "vllm:num_requests_waiting": "Requests in the queue.",
    "vllm:kv_cache_usage_perc": "Share of the blocks that are held, 0 to 1.",
}
_COUNTERS = {
    "vllm:prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Tokens found in the prefix cache.",
    "vllm:prompt_tokens": "Prompt tokens of admitted requests.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:num_preemptions": "Requests that lost their blocks to another.",
}


def render(settings: Settings, engines: list[Engine]) -> str:
    """Return all metrics in Prometheus' text format."""
    lines: list[str] = []
    model = _escaped(settings.served[0])
    labels = [f'engine="{rank}",model_name="{model}"' for rank in range(len(engines))]
    for name, meaning in _GAUGES.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        lines += [
            f"{name}{{{label}}} {float(_values(each)[name])}" for label, each in zip(labels, engines, strict=True)
        ]
    for name, meaning in _COUNTERS.items():
        lines += [f"# HELP {name}_total {meaning}", f"# TYPE {name}_total counter"]
        lines += [
            f"{name}_total{{{label}}} {float(_values(each)[name])}" for label, each in zip(labels, engines, strict=True)
        ]
        lines += [f"# HELP {name}_created {meaning}", f"# TYPE {name}_created gauge"]
        lines += [f"{name}_created{{{label}}} {STARTED_S!r}" for label in labels]
    lines += ["# HELP vllm:request_success_total Finished requests.", "# TYPE vllm:request_success_total counter"]
    for label, engine in zip(labels, engines, strict=True):
        for reason in ("stop", "length", "abort"):
            count = float(engine.scheduler.counters.finished.get(reason, 0))
            lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {count}')
    lines += ["# HELP vllm:cache_config_info The cache's configuration.", "# TYPE vllm:cache_config_info gauge"]
    lines += [
        f'vllm:cache_config_info{{{_configuration(settings)},engine="{rank}"}} 1.0' for rank in range(len(engines))
    ]
    return "\n".join(lines) + "\n"


def _values(engine: Engine) -> dict[str, float]:
    scheduler = engine.scheduler
    counters = scheduler.counters
    return {
        "vllm:num_requests_running": len(scheduler.running),
        "vllm:num_requests_waiting": len(scheduler.waiting),
        "vllm:kv_cache_usage_perc": scheduler.pool.usage_share,
        "vllm:prefix_cache_queries": counters.queried_tokens,
        "vllm:prefix_cache_hits": counters.hit_tokens,
        "vllm:prompt_tokens": counters.prompt_tokens,
        "vllm:generation_tokens": counters.generated_tokens,
        "vllm:num_preemptions": counters.preemptions,
    }


def _configuration(settings: Settings) -> str:
    values = {
        "block_size": settings.block_size,
        "enable_prefix_caching": settings.limits.prefix_caching,
        "num_gpu_blocks": settings.limits.num_blocks,
        "prefix_caching_hash_algo": settings.algorithm,
    }
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
