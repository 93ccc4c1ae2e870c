"""Long prompts do not stall the router: the small form of `make bench-stall`."""

from __future__ import annotations

from loadtest.bench.stall import measure


async def test_health_checks_are_answered_while_long_prompts_come_in() -> None:
    """8 prompts of 40,000 tokens at once: read on the loop, half of the checks would wait for one and more of them.

    The limits leave room for the tests that run beside this one; `make bench-stall` has the real ones.
    """
    found = await measure(8, 40_000, deadline_ms=60_000)
    assert (found.understood, found.late) == (8, 0)
    assert found.p50_s < 0.02
    assert found.p99_s < 0.15
