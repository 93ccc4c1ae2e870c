"""Who sessions come from: tenants by their keys, and the models (or LoRA adapters) that they ask for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from router.errors import ConfigurationError, Problem


@dataclass(frozen=True, slots=True)
class Caller:
    """One session's.

    Attributes:
        model: The name it asks for: the model's or an adapter's.
        tenant: Which key it has, from 0; None: it has none.
        key: Sent as bearer token; empty: none.
    """

    model: str
    tenant: int | None = None
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Callers:
    """All of them. A session's caller follows from its name, so it is the same whoever sends it.

    Attributes:
        models: The model's name, then its adapters'; each is asked for equally often.
        keys: API keys, one a tenant, with equally many sessions each; empty: no key is sent.
    """

    models: Sequence[str]
    keys: Sequence[str] = field(default=(), repr=False)

    def of(self, session_id: str) -> Caller:
        """Return the caller of a session."""
        if len(self.models) == 1 and len(self.keys) < 2:
            return Caller(self.models[0], 0 if self.keys else None, self.keys[0] if self.keys else "")
        rng = random.Random(f"caller/{session_id}")
        model = rng.choice(self.models)
        if not self.keys:
            return Caller(model)
        tenant = rng.randrange(len(self.keys))
        return Caller(model, tenant, self.keys[tenant])


def read_keys(path: Path) -> tuple[str, ...]:
    """Read API keys, one a line; empty lines and those that begin with # are skipped.

    Raises:
        ConfigurationError: The file can't be read, or holds none.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([Problem("--api-keys", f"{path}: {error}", "a file with a key a line")]) from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigurationError([Problem("--api-keys", f"{path} holds no key", "one a line")])
    return keys
