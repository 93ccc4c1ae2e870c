"""Generated requests against real engines: the router's chain is the engine's, for every one of them.

A failure names its test, such as `test_chain_is_the_engines[seeded-17]`, and the run's first lines tell its seed:
`WARMROUTE_TEST_SEED=... make test-vllm-full ARGS='-k seeded-17]'` sends that request alone again.
"""

from __future__ import annotations

import pytest

from tests.vllm.full.generated import FAMILIES, generate
from tests.vllm.full.line import Line

pytestmark = pytest.mark.vllm_full

REQUESTS = 6 * len(FAMILIES)
"""For each engine."""


@pytest.mark.parametrize("number", range(REQUESTS))
def test_chain_is_the_engines(line: Line, seed: str, number: int) -> None:
    """Ids are `/tokenize`'s, hashes are the published ones, and sent again it hits what the router said."""
    plan = line.plan
    case = generate(seed, plan.name, number, line.models, plan.scheme.block_size)
    try:
        line.check(case)
    except Exception as error:
        error.add_note(f"seed {seed}, plan {plan.name}, request {number} ({case.family}): POST {case.path}")
        error.add_note(case.raw.decode("utf-8-sig"))
        raise
