"""Generated requests against real engines: the router's chain is the engine's, for every one of them.

A failure names its test, such as `test_chain_is_the_engines[seeded-17]`, and the run's first lines tell its seed:
`WARMROUTE_TEST_SEED=... make test-vllm-full ARGS='-k seeded-17]'` sends that request alone again.
"""

from __future__ import annotations

import pytest

from tests.vllm.full.generated import EMBED, GENERATE, generate
from tests.vllm.full.line import Line
from tests.vllm.full.plans import PLANS

pytestmark = pytest.mark.vllm_full

ROUNDS = 20
"""Requests of each family that each engine gets."""
_WRITERS = [pytest.param(plan, id=plan.name) for plan in PLANS if not plan.gives_vectors]
_EMBEDDERS = [pytest.param(plan, id=plan.name) for plan in PLANS if plan.gives_vectors]


@pytest.mark.parametrize("number", range(ROUNDS * len(GENERATE)))
@pytest.mark.parametrize("line", _WRITERS, indirect=True)
def test_chain_is_the_engines(line: Line, seed: str, number: int) -> None:
    """Ids are `/tokenize`'s, hashes are the published ones, and sent again it hits what the router said."""
    _check(line, seed, number)


@pytest.mark.parametrize("number", range(ROUNDS * len(EMBED)))
@pytest.mark.parametrize("line", _EMBEDDERS, indirect=True)
def test_chain_of_embeddings_is_the_engines(line: Line, seed: str, number: int) -> None:
    """The same for models that give vectors."""
    _check(line, seed, number)


def _check(line: Line, seed: str, number: int) -> None:
    case = generate(seed, line.plan, number)
    try:
        line.check(case)
    except Exception as error:
        error.add_note(f"seed {seed}, plan {line.plan.name}, request {number} ({case.family}): POST {case.path}")
        error.add_note(case.raw.decode("utf-8-sig"))
        raise
