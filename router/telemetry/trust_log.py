"""The log line of a model whose predictions fail, and of one whose predictions hold again: once for each change."""

from __future__ import annotations

import logging

from router.fleet.vouching import EXPLANATIONS, UP_AFTER, TrustChange, VouchState

LOG = logging.getLogger("warmroute.trust")


def log_trust_change(change: TrustChange) -> None:
    """Name the model, its kind of requests and the unit."""
    unit, record = change.unit, change.record
    facts = {"unit": unit.unit_id, "model": record.model, "kind": record.kind}
    if record.state is VouchState.DISTRUSTED and record.reason is not None:
        LOG.warning(
            "predictions fail: the engine stores other blocks than the router computes, so its reports are not "
            "believed for these requests; %s",
            EXPLANATIONS[record.reason],
            extra={**facts, "reason": record.reason.value, "agreed_tokens": record.agreed_tokens},
        )
    else:
        LOG.info("predictions hold again: %d in a row", UP_AFTER, extra=facts)
