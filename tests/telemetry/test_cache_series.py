"""The token cache's figures at a scrape."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from router.request.reader import PromptReader
from router.request.token_cache import TokenCache
from router.telemetry.cache_series import CacheSeries


def test_a_scrape_tells_what_is_kept_and_how_often_it_helped() -> None:
    """One prompt of ids, asked for twice: a miss, then a hit."""
    cache = TokenCache()
    reader = PromptReader(lambda _: None, cache=cache)
    registry = CollectorRegistry()
    registry.register(CacheSeries(cache, reader.memo))
    for _ in range(2):
        reader.quick("/v1/completions", b'{"prompt": [1, 2, 3]}', 4096)
    told = generate_latest(registry).decode()
    assert 'warmroute_token_cache_lookups_total{kind="prompt",result="hit"} 1.0' in told
    assert 'warmroute_token_cache_lookups_total{kind="prompt",result="miss"} 1.0' in told
    assert f"warmroute_token_cache_bytes {float(cache.used_bytes)}" in told
