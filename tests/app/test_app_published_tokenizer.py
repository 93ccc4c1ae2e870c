"""A router whose file names no tokenizer, before agents that publish theirs: exact from the published files alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet

FAST = EngineOptions(num_blocks=512, prefill_tokens_per_s=200_000, decode_step_s=0.001)
ROUTER = {"models": [{"name": "tiny"}], "limits": {"client_template_s": 5}}  # time for a machine under load
TEXT = "What an agent reads beside its engine, the router needs no copy of. " * 6


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """Two replicas whose agents know the tokenizer; the router has none."""
    arguments = ("--tokenizer", str(FAST.folder))
    with LocalFleet(FAST, replicas=2, router=ROUTER, agent_arguments=arguments) as running:
        yield running


async def test_predictions_are_exact_and_no_replica_is_asked_to_tokenise(
    client: Any, wait_for_blocks: Any, eventually: Any
) -> None:
    """The engine reads what the router predicted; admin says where the text is from."""

    def origin() -> dict[str, str]:
        [told] = client.send("GET", "/admin/replicas")[2]["texts"]
        return told  # type: ignore[no-any-return]

    await eventually(lambda: origin()["source"] == "agent", what="the agents' tokenizer")
    assert len(origin()["detail"]) == 12
    before = wait_for_blocks.total()
    first, predicted, delivered, answer = client.chat("one: " + TEXT)
    assert (predicted, delivered) == (0, 0)

    def is_proven() -> bool:
        replicas = client.send("GET", "/admin/replicas")[2]["replicas"]
        return any(unit["trust"] == "exact" for replica in replicas for unit in replica["units"])

    # Until its first block proves the engine's scheme, what was sent there is remembered, and counted as blocks too.
    await eventually(is_proven, what="the proof")
    await wait_for_blocks(before + answer["usage"]["prompt_tokens"] // 16)
    second, predicted, delivered, _ = client.chat("one: " + TEXT, "a reply", "another question")
    assert second == first
    assert predicted == delivered > 16 * 4
    metrics = client.send("GET", "/metrics")[2].decode()
    assert 'warmroute_remote_tokenize_total{result="answered"} 1' not in metrics
    assert "warmroute_not_understood_total{" not in metrics
