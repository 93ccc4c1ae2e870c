"""What a block costs in Redis, by MEMORY USAGE of a real Valkey."""

from __future__ import annotations

from router.tools.bench_redis import TRAFFICS, Figures, measure


async def test_a_block_costs_no_more_than_promised(redis_url: str) -> None:
    """24 bytes in snapshots, two at once included, and 16 in a stream under usual traffic; a hash alone is 8."""
    figures = await measure(redis_url, blocks=20_000, seconds=30.0)
    assert figures.failures() == []
    assert 8 <= figures.snapshot <= 12
    assert figures.swapping <= 24
    for name, size in figures.stream.items():
        assert 8 <= figures.entries[name] <= size
        assert size <= 16 or not TRAFFICS[name].is_typical


def test_a_limit_that_is_missed_is_told() -> None:
    """Each with its figure."""
    figures = Figures(dict.fromkeys(TRAFFICS, 17.0), dict.fromkeys(TRAFFICS, 15.0), 13.0, 26.0)
    assert [line.split(" bytes")[0] for line in figures.failures()] == [
        "chat: 17.0",
        "documents: 17.0",
        "short prompts: 17.0",
        "26.0",
    ]
