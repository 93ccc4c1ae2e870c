"""`GET /v1/models`: the union of what the fleet serves, from the router's own knowledge.

No replica is asked, so a hung one can't hold the answer up, and clients see one list whichever replica they reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from router.fleet.replica import Replica
from router.request.names import ModelNames


def models_json(replicas: Iterable[Replica], created_unix_s: int, names: ModelNames | None = None) -> bytes:
    """Return the list in vLLM's shape, sorted by name.

    Where replicas differ in `max_model_len`, the smallest is told: any of them may serve the request.

    Args:
        created_unix_s: What `created` says; clients only want a number there.
        names: Aliases and splits, which are listed too where what they stand for is served.
    """
    models: dict[str, dict[str, Any]] = {}
    for replica in replicas:
        for served in replica.models.values():
            known = models.get(served.name)
            if known is None:
                models[served.name] = {
                    "id": served.name,
                    "object": "model",
                    "created": created_unix_s,
                    "owned_by": "vllm",
                    "root": served.root,
                    "parent": served.parent,
                    "max_model_len": served.max_model_len,
                }
            elif served.max_model_len is not None:
                known["max_model_len"] = min(known["max_model_len"] or served.max_model_len, served.max_model_len)
    for name, targets in (names.meanings() if names else {}).items():
        known_targets = [models[target] for target in targets if target in models]
        if known_targets and name not in models:
            lengths = [known["max_model_len"] for known in known_targets]
            shortest = min((length for length in lengths if length is not None), default=None)
            models[name] = {**known_targets[0], "id": name, "parent": None, "max_model_len": shortest}
    return orjson.dumps({"object": "list", "data": [models[name] for name in sorted(models)]})
