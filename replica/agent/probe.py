"""Makes an engine show a root block: a short prompt that nobody sent before.

An agent that attaches late sees only chains whose beginning it missed. The prompt is one block and one token of random
ids, plain (no adapter, no salt), with one token to generate.
"""

from __future__ import annotations

import random

from replica.agent.engine import Engine
from replica.errors import EngineError
from router.kv.registration import RegisteredModel

# Below are special tokens and above may be the end of a tiny vocabulary; 250 ids over 16 places are nonce enough.
_FIRST_ID, _LAST_ID = 10, 259
TIMEOUT_S = 30.0


def probe_tokens(block_size: int, rng: random.Random) -> list[int]:
    """Return the token ids of a probe: one whole block and one more."""
    return [rng.randint(_FIRST_ID, _LAST_ID) for _ in range(block_size + 1)]


def probed_model(models: tuple[RegisteredModel, ...], block_size: int) -> RegisteredModel:
    """Return a base model whose context takes a probe.

    Raises:
        EngineError: There is none.
    """
    for model in models:
        # One token more is generated.
        if model.parent is None and (model.max_model_len is None or block_size + 2 <= model.max_model_len):
            return model
    raise EngineError(f"no base model takes a probe of {block_size + 1} tokens")


async def send(engine: Engine, model: RegisteredModel, token_ids: list[int], rank: int | None) -> None:
    """Send the probe; it shows up in the events. Raises EngineError."""
    await engine.complete(model.name, token_ids, rank, TIMEOUT_S)
