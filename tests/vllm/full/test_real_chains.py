"""Generated requests against real engines: the router's chain is the engine's, for every one of them.

A failure names its test, such as `test_chain_is_the_engines[seeded-17]`, and the run's first lines tell its seed:
`WARMROUTE_TEST_SEED=... make test-vllm-full ARGS='-k seeded-17]'` sends that request alone again.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm.full.generated import FAMILIES, generate
from tests.vllm.full.line import Line
from tests.vllm.full.plans import PLANS

pytestmark = pytest.mark.vllm_full


def _cases() -> list[Any]:
    """Plan by plan, so that one engine runs at a time; test ids are as `seeded-17`."""
    return [
        pytest.param(plan, number, id=f"{plan.name}-{number}")
        for plan in PLANS
        for number in range(plan.rounds * len(FAMILIES[plan.sends]))
    ]


@pytest.mark.parametrize(("line", "number"), _cases(), indirect=["line"], scope="session")
def test_chain_is_the_engines(line: Line, seed: str, number: int) -> None:
    """Ids are `/tokenize`'s, hashes are the published ones, and sent again it hits what the router said."""
    _check(line, seed, number)


def _check(line: Line, seed: str, number: int) -> None:
    case = generate(seed, line.plan, number)
    try:
        line.check(case)
    except Exception as error:
        error.add_note(f"seed {seed}, plan {line.plan.name}, request {number} ({case.family}): POST {case.path}")
        error.add_note(case.raw.decode("utf-8-sig"))
        raise
