"""What an autoscaler asks: how long prompts wait before a model's replicas. Plain numbers, one model an answer.

KEDA's metrics-api scaler reads `queue_s`; docs/kubernetes.md says what to aim at.
"""

from __future__ import annotations

from typing import Any

from router.fleet.fleet import Fleet
from router.fleet.replica import ReplicaState
from router.telemetry.reuse_ledger import ReuseLedger


def autoscaling_view(fleet: Fleet, ledger: ReuseLedger, model: str, now_s: float) -> dict[str, Any]:
    """Return the figures of one model, for JSON.

    `queue_s` is the mean over ready replicas of the seconds that the uncached prompt tokens placed there, by all known
    routers, take at the speed learned for each. `running` counts requests there that have not ended, `waiting` those
    that the engines say have no place in their batch yet, `kv_usage_share` is the mean of theirs. `captured_share` is
    the share of prompt tokens that were found cached since the start. Means are 0 where no replica is ready, and
    `replicas` tells so: a fleet that is scaled to nothing must not look like one in need.
    """
    replicas = [replica for replica in fleet.replicas.values() if not replica.models or model in replica.models]
    ready = [replica for replica in replicas if replica.state(now_s) is ReplicaState.READY]
    units = [unit for replica in ready for unit in replica.units]
    loads = [unit.load for unit in units if unit.load is not None]
    seconds = [unit.queue_s(now_s) for unit in units]
    prompt, captured = ledger.reuse_of(model)
    return {
        "model": model,
        "replicas": len(ready),
        "queue_s": round(_mean(seconds), 4),
        "running": sum(replica.requests for replica in ready),
        "waiting": sum(load.waiting for load in loads),
        "kv_usage_share": round(_mean([load.kv_usage for load in loads]), 4),
        "captured_share": round(captured / prompt, 4) if prompt else 0.0,
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
