"""A router without any tokenizer before a fleet with agents: the replicas tokenise, and placement is as exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet

FAST = EngineOptions(num_blocks=512, prefill_tokens_per_s=200_000, decode_step_s=0.001)
ROUTER = {"models": [{"name": "tiny"}], "limits": {"remote_tokenize_deadline_ms": 10_000}}
TEXT = "What the router can't tokenise itself, the engine that will compute it can. " * 6


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """Two replicas with agents; the router has no tokenizer."""
    with LocalFleet(FAST, replicas=2, router=ROUTER) as running:
        yield running


async def test_a_shared_prefix_goes_to_its_holder_with_the_tokens_that_the_engine_then_finds(
    client: Any, wait_for_blocks: Any
) -> None:
    """Chats and completions; the metric counts what was asked."""
    for turn in range(3):
        before = wait_for_blocks.total()
        first, predicted, delivered, answer = client.chat(f"{turn}: {TEXT}")
        assert (predicted, delivered) == (0, 0)
        await wait_for_blocks(before + answer["usage"]["prompt_tokens"] // 16)
        second, predicted, delivered, _ = client.chat(f"{turn}: {TEXT}", "a reply", "another question")
        assert second == first
        assert predicted == delivered > 16 * 4
    before = wait_for_blocks.total()
    body = {"model": "tiny", "prompt": "completion: " + TEXT, "max_tokens": 1}
    status, first_headers, answer = client.send("POST", "/v1/completions", body)
    prompt_tokens = answer["usage"]["prompt_tokens"]
    assert status == 200
    await wait_for_blocks(before + prompt_tokens // 16)
    _, headers, answer = client.send("POST", "/v1/completions", body)
    assert headers["x-warmroute-replica"] == first_headers["x-warmroute-replica"]
    matched = int(headers["x-warmroute-matched-tokens"])
    assert matched == answer["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt_tokens - 1) // 16 * 16
    metrics = client.send("GET", "/metrics")[2].decode()
    assert 'warmroute_remote_tokenize_total{result="answered"} 8.0' in metrics
    assert "warmroute_not_understood_total{" not in metrics
