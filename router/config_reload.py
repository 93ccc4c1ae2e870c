"""Which changes of the configuration take effect while running, and what came of the last attempt. Pure.

A key that can't be changed while running keeps its value, is named, and the rest of the change applies.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from router.config import ModelConfig, RouterConfig

RESTART_KEYS = (
    "listen",
    "workers",
    "redis",
    "registration",
    "admin.listen",
    "log.format",
    "record",
    "tracing",
    "picker.listen",
    "picker.cert",
    "picker.key",
)
"""Keys, or sections, that are read once: sockets, processes, the link to Redis and whom it believes."""


def merged(running: RouterConfig, wanted: RouterConfig) -> tuple[RouterConfig, list[str]]:
    """Return what may be in force now, and the keys that need a restart.

    Args:
        running: What is in force.
        wanted: What the file says, checked.
    """
    kept: RouterConfig = wanted
    needs_restart = []
    for path in RESTART_KEYS:
        keys = path.split(".")
        if keys[0] not in RouterConfig.model_fields:
            continue
        old, new = _at(running, keys), _at(wanted, keys)
        if old != new:
            needs_restart.append(path)
            kept = _with(kept, keys, old)
    if (running.tenants is None) != (wanted.tenants is None):
        # With them admin's port is another, and without them everyone is let in: no mistake in a file may do that.
        needs_restart.append("tenants")
        kept = kept.model_copy(update={"tenants": running.tenants, "isolation": running.isolation})
    if running.redis is not None and _published(running) != _published(wanted):
        needs_restart.append("models")
        kept = kept.model_copy(update={"models": running.models})
    return kept, needs_restart


def _published(config: RouterConfig) -> list[ModelConfig]:
    """Return the models whose tokenizers agents publish: the link to Redis follows those of the start."""
    return [model.model_copy(update={"aliases": ()}) for model in config.models if model.tokenizer is None]


def _at(config: BaseModel, keys: list[str]) -> Any:
    value: Any = config
    for key in keys:
        value = getattr(value, key)
    return value


def _with(config: RouterConfig, keys: list[str], value: Any) -> RouterConfig:
    if len(keys) == 1:
        return config.model_copy(update={keys[0]: value})
    section = getattr(config, keys[0]).model_copy(update={keys[1]: value})
    return config.model_copy(update={keys[0]: section})


def digest_of(shown: dict[str, Any]) -> str:
    """Return 16 hex digits that name a configuration.

    Args:
        shown: With its secrets masked: a digest over a secret would let it be guessed.
    """
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(slots=True)
class ReloadReport:
    """What became of the configuration's file; `/admin/config` shows it.

    Attributes:
        digest: Of what is in force, secrets masked.
        loaded_unix_s: When that came into force.
        result: Of the last attempt: `started`, `applied`, `unchanged` or `failed` (the one before stays in force).
        tried_unix_s: When that was.
        problems: Everything that is wrong with the file as it is now.
        needs_restart: Changed keys that are not in force: they take a restart.
    """

    digest: str = ""
    loaded_unix_s: float = 0.0
    result: str = "started"
    tried_unix_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    needs_restart: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "digest": self.digest,
            "loaded_unix_s": round(self.loaded_unix_s, 3),
            "result": self.result,
            "tried_unix_s": round(self.tried_unix_s, 3),
            "problems": self.problems,
            "needs_restart": self.needs_restart,
        }
