"""Simulated engines hit what real ones hit, on the same traffic; `loadtest/calibrate` gives them the real ones' speed.

Caches are so small that blocks are evicted and asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.calibrate.__main__ import calibrate, options, show
from tests.vllm.engines import MODEL
from tests.vllm.fidelity import (
    ENGINE_OPTIONS,
    ROUTER,
    STEP_TOKENS,
    ask,
    one_by_one,
    reset,
    side_by_side,
    simulated_fleet,
    tell,
)
from tests.vllm.real_fleet import RealFleet, real_fleet

pytestmark = pytest.mark.vllm_full

SEEDS = range(5)
NUM_BLOCKS = 100
MODEL_LEN = 2_048
REQUESTS = 60
USERS, EACH = 4, 24
MOST_OFF = 0.02
"""Of all hit tokens, where requests come at once: who comes first differs from run to run, of real engines too."""


@dataclass
class Both:
    """A real fleet and a simulated one."""

    real: RealFleet
    simulated: RealFleet


@pytest.fixture(scope="module")
def both(tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """The two, the simulated one as fast as the real one was measured to be."""
    small = ("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-model-len", str(MODEL_LEN), *ENGINE_OPTIONS)
    folder = tmp_path_factory.mktemp("f")
    with real_fleet(tiny_model, valkey_server, folder, *small, **ROUTER) as real:
        words = (real.engines["r0"], "--model", MODEL, "--repeats", "2", "--batches", "1,4")
        args = options().parse_args([*words, "--most-tokens", "1024", "--step-tokens", str(STEP_TOKENS), "--seed", "1"])
        model, errors = asyncio.run(calibrate(args))
        show(model, errors)
        more = ("--decode-request-s", str(model.decode_request_s), "--max-model-len", str(MODEL_LEN))
        with simulated_fleet(NUM_BLOCKS, model.prefill_tokens_per_s, model.decode_step_s, *more) as simulated:
            yield Both(real, simulated)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_by_one_every_hit_is_equal(both: Both, seed: int) -> None:
    """Request for request the same replica, the same prompt and the same cached tokens, evictions included."""
    for fleet in (both.real, both.simulated):
        reset(fleet)
    evicted_before = both.real.ledger()["evicted"]
    hits = 0
    for number, asked in enumerate(one_by_one(seed, REQUESTS)):
        real, simulated = (ask(fleet, asked, settle=True) for fleet in (both.real, both.simulated))
        assert simulated == real, f"request {number}"
        hits += real.cached_tokens
    evicted = both.real.ledger()["evicted"] - evicted_before
    print(f"seed {seed}: {hits} hit tokens, {evicted} evicted ones asked for again")
    assert hits > 0
    assert evicted > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_at_once_hits_are_nearly_equal(both: Both, seed: int) -> None:
    """In total, with several users."""
    lanes = side_by_side(seed, USERS, EACH)
    told = []
    for fleet in (both.real, both.simulated):
        reset(fleet)
        told.append(tell(fleet, lanes))
    real, simulated = (sum(each.cached_tokens for each in side) for side in told)
    prompts = [[each.prompt_tokens for each in side] for side in told]
    assert prompts[0] == prompts[1]
    print(f"seed {seed}: {real} hit tokens of {sum(prompts[0])}, simulated {simulated} ({simulated / real - 1:+.2%})")
    assert simulated == pytest.approx(real, rel=MOST_OFF)
