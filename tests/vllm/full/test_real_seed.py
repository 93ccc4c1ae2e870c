"""A real engine with a seed that nobody was told of, and without token details: named, with what to type.

In order: each test takes the processes as the one before left them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tools.processes import stop_all
from tests.vllm.engines import BLOCK_SIZE, TOKENIZER
from tests.vllm.full.stand import COMPLETIONS, Stand, doctor

pytestmark = pytest.mark.vllm_full


@pytest.fixture(scope="module")
def stand(tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An engine with a seed, and without --enable-prompt-tokens-details."""
    import redis

    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    core = min(os.sched_getaffinity(0))
    details = ("--enable-prompt-tokens-details",)
    folder, seed = tmp_path_factory.mktemp("seeded"), {"PYTHONHASHSEED": "1234"}
    stand = Stand(folder, valkey_server, tiny_model, core, environment=seed, left_out=details)
    try:
        stand.start_engine()
        yield stand
    finally:
        stop_all(list(stand.children.values()), grace_s=20.0)
        stand.held.close()


def test_doctor_names_a_seed_and_missing_details(stand: Stand) -> None:
    """Each with what to type; with the seed it is the details alone."""
    code, page = doctor("--engine", stand.engine, "--tokenizer", str(TOKENIZER))
    assert code == 1
    assert "--hash-seed" in page
    assert "--enable-prompt-tokens-details" in page
    code, page = doctor("--engine", stand.engine, "--tokenizer", str(TOKENIZER), "--hash-seed", "1234")
    assert code == 1
    assert "--hash-seed" not in page
    assert "--enable-prompt-tokens-details" in page


def test_a_seed_that_the_agent_does_not_know_is_the_reason(stand: Stand) -> None:
    """The unit is not trusted, and the reason names the option; told the seed, it is exact, and what follows is hit."""
    stand.start_router(tokenizer=str(TOKENIZER))
    stand.start_agent()
    stand.until("the agent knows why", lambda: any("--hash-seed" in str(u.get("reason")) for u in stand.units()))
    assert not stand.trusted()
    assert stand.metric("warmroute_replica_trust", replica="r0", model="tiny", state="exact") == 0
    stand.stop("agent")
    stand.start_agent("--hash-seed", "1234")
    stand.until("the router trusts the engine", stand.trusted)
    ids = list(range(300, 300 + 5 * BLOCK_SIZE + 1))
    stand.ask(COMPLETIONS, {"prompt": ids})
    stand.settle()
    assert stand.ask(COMPLETIONS, {"prompt": ids}).predicted == 5 * BLOCK_SIZE
