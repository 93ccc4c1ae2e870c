"""A real engine of two data-parallel ranks: each has a cache and sockets of its own, and is followed as such."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tools.processes import stop_all
from tests.vllm.engines import BLOCK_SIZE, MODEL, TOKENIZER, call
from tests.vllm.full.stand import COMPLETIONS, Stand

pytestmark = pytest.mark.vllm_full


@pytest.fixture(scope="module")
def stand(tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """The engine, both of its ranks proven."""
    import redis

    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    cores = sorted(os.sched_getaffinity(0))
    environment = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}  # of each rank
    options = ("--data-parallel-size", "2")
    folder = tmp_path_factory.mktemp("ranks")
    stand = Stand(folder, valkey_server, tiny_model, cores[0], options, environment, ranks=2)
    try:
        stand.start_engine()
        stand.start_router(tokenizer=str(TOKENIZER))
        stand.start_agent()
        stand.prove()
        yield stand
    finally:
        stop_all(list(stand.children.values()), grace_s=20.0)
        stand.held.close()


def test_ranks_are_caches_of_their_own(stand: Stand) -> None:
    """A prompt that one rank holds is expected there alone; the router asks for that rank, and it is delivered."""
    rng = random.Random(5)
    for rank in (0, 1, 1, 0):
        ids = [rng.randrange(300, 4_096) for _ in range(6 * BLOCK_SIZE + 1)]
        assert stand.ask_rank(rank, ids).cached == 0
        held, other = stand.settle(rank), stand.settle(1 - rank)
        assert not held & other
        decision = call(stand.router, "POST", f"/admin/explain?path={COMPLETIONS}", {"model": MODEL, "prompt": ids})
        matched = {item["unit"]: item["matched_tokens"] for item in decision.json["candidates"]}
        assert matched == {f"r0/{rank}": 6 * BLOCK_SIZE, f"r0/{1 - rank}": 0}
        answer = stand.ask(COMPLETIONS, {"prompt": ids})
        assert answer.predicted == answer.cached == 6 * BLOCK_SIZE
