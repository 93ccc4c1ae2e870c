"""How replicas and the configuration look to an operator: plain data, without secrets."""

from __future__ import annotations

from typing import Any

from router.config import RouterConfig
from router.config_file import SECRETS
from router.fleet.replica import Replica, Unit
from router.fleet.vouching import EXPLANATIONS, Record, Vouching
from router.index.prefix_index import PrefixIndex
from router.kv.log_lines import mask_secrets
from router.scheduling.shadow import Shadow
from router.texts import NOBODY, ModelTexts

MASKED = "***"


def replica_view(replica: Replica, index: PrefixIndex, now_s: float, vouching: Vouching) -> dict[str, Any]:
    """Return one replica for JSON; times are seconds before now."""
    return {
        "replica": replica.replica_id,
        "url": replica.url,
        "source": replica.source,
        "engine": replica.engine,
        "state": replica.state(now_s).value,
        "down_reason": replica.down_reason,
        "failures_in_a_row": replica.failures_in_a_row,
        "ejections": replica.ejections,
        "models": [
            {"name": model.name, "root": model.root, "parent": model.parent, "max_model_len": model.max_model_len}
            for model in replica.models.values()
        ],
        "units": [_unit_view(unit, index, now_s, vouching) for unit in replica.units],
    }


def _unit_view(unit: Unit, index: PrefixIndex, now_s: float, vouching: Vouching) -> dict[str, Any]:
    scheme, load, in_flight = unit.scheme, unit.load, unit.in_flight
    return {
        "unit": unit.unit_id,
        "rank": unit.rank,
        "trust": unit.trust.value,
        "reason": unit.reason,
        "scheme": None
        if scheme is None
        else {
            "algorithm": scheme.algorithm.value,
            "block_size": scheme.block_size,
            # A seed may be what keeps hashes from being guessed.
            "seed": None if scheme.seed is None else MASKED,
        },
        "predictions": [_record_view(unit, record, vouching) for record in vouching.records_of(unit)],
        "num_blocks": unit.num_blocks,
        "blocks": index.blocks_of(unit.slot),
        "blocks_age_s": None if unit.blocks_as_of_s is None else round(now_s - unit.blocks_as_of_s, 3),
        "requests": in_flight.requests,
        "backlog_tokens": round(in_flight.backlog_tokens(now_s), 1),
        "other_routers": {"requests": unit.peer_requests, "backlog_tokens": round(unit.peer_tokens, 1)},
        "foreign_requests": unit.foreign_requests,
        "prefill_tokens_per_s": round(in_flight.prefill_tokens_per_s, 1),
        "load": None
        if load is None
        else {
            "running": load.running,
            "waiting": load.waiting,
            "kv_usage_share": load.kv_usage,
            "age_s": round(now_s - load.at_s, 3),
        },
    }


def _record_view(unit: Unit, record: Record, vouching: Vouching) -> dict[str, Any]:
    return {
        "model": record.model,
        "kind": record.kind,
        "trust": vouching.trust(unit, record).value,
        "state": record.state.value,
        "reason": None if record.reason is None else record.reason.value,
        "explanation": None if record.reason is None else EXPLANATIONS[record.reason],
        "good": record.good,
        "mismatched": record.mismatched,
        "undecided": record.undecided,
        "agreed_tokens": record.agreed_tokens if record.mismatched else None,
        "delivered": {
            "as_predicted": record.delivered_as_predicted,
            "above": record.delivered_above,
            "below": record.delivered_below,
        },
    }


def shadow_view(config: RouterConfig, shadow: Shadow | None) -> dict[str, Any]:
    """Return what other weights would have done, for JSON; `weights` is None where none are tried."""
    wanted = config.placement.shadow
    if wanted is None or shadow is None:
        return {"weights": None}
    weights = {"weights": wanted.weights.model_dump(), "sample_share": wanted.sample_share}
    return {**weights, **shadow.tally.to_dict()}


def text_views(config: RouterConfig, texts: ModelTexts) -> list[dict[str, str]]:
    """Return where each configured model's tokenizer and templates come from, for JSON."""
    origins = [(model.name, texts.origins.get(model.name, NOBODY)) for model in config.models]
    return [{"model": name, "source": origin.source, "detail": origin.detail} for name, origin in origins]


def masked_config(config: RouterConfig) -> dict[str, Any]:
    """Return the configuration for JSON, with every secret masked."""
    data = config.model_dump(mode="json")
    for section, key in SECRETS:
        if data[section][key] is not None:
            data[section][key] = MASKED
    for tenant in data["tenants"] or ():
        # Nobody finds a key by its hash; but whoever knows a hash can tell a key that leaked elsewhere.
        tenant["keys"] = [MASKED] * len(tenant["keys"])
    if data["redis"] is not None:
        data["redis"]["url"] = mask_secrets(data["redis"]["url"])
    return data
