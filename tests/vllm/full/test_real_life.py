"""An engine's life at the real thing: eviction, reset, death and ranks. After each the router's index is the engine's.

What an engine holds is added up from its own events by code of the tests; `cached_tokens` in its answers is the second
witness. In order: each test finds the cache as the one before left it.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tools.processes import stop_all
from tests.vllm.engines import BLOCK_SIZE, TOKENIZER, Answer, call
from tests.vllm.full.stand import COMPLETIONS, Stand

pytestmark = pytest.mark.vllm_full

BLOCKS = 40
"""Of the engine's whole cache; one of them it keeps for itself."""
_numbers = itertools.count(1)


def prompt(blocks: int) -> list[int]:
    """Ids of a prompt that fills whole blocks and one token more, and that no other test has sent."""
    rng = random.Random(next(_numbers))
    return [rng.randrange(300, 4_096) for _ in range(blocks * BLOCK_SIZE + 1)]


def told_truth(answer: Answer) -> bool:
    """Whether the engine delivered what the router said."""
    return answer.cached == answer.predicted


def prove(stand: Stand) -> None:
    """Have each rank announce a chain from its root, which proves its scheme, and wait until the router knows."""
    body = {"model": "tiny", "prompt": prompt(2), "max_tokens": 1}
    for rank in range(stand.ranks):
        headers = {"x-data-parallel-rank": str(rank)} if stand.ranks > 1 else {}
        stand.ask_engine(COMPLETIONS, body, **headers)
    stand.until("the router trusts the engine", stand.trusted)


@pytest.fixture(scope="module")
def stand(tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An engine with a cache of 40 blocks, whose scheme is proven."""
    import redis

    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    options = ("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "1024")
    core = min(os.sched_getaffinity(0))
    stand = Stand(tmp_path_factory.mktemp("life"), valkey_server, tiny_model, core, options)
    try:
        stand.start_engine()
        stand.start_router(tokenizer=str(TOKENIZER))
        stand.start_agent()
        prove(stand)
        yield stand
    finally:
        stop_all(list(stand.children.values()), grace_s=20.0)
        stand.held.close()


def test_eviction_is_followed_block_for_block(stand: Stand) -> None:
    """Prompts of 30 times the cache go through it: what is left is known, and every prediction is delivered."""
    rng = random.Random(3)
    sent: list[list[int]] = []
    most = 0
    for _ in range(200):
        again = sent and rng.random() < 0.3
        ids = rng.choice(sent[-12:]) if again else prompt(rng.randint(1, 12))
        sent.append(ids)
        answer = stand.ask(COMPLETIONS, {"prompt": ids})
        assert told_truth(answer)
        most = max(most, len(stand.equal()))
    assert BLOCKS // 2 < most < BLOCKS
    oldest = stand.ask(COMPLETIONS, {"prompt": sent[0]})
    assert oldest.predicted == oldest.cached == 0


def test_a_reset_empties_the_index(stand: Stand) -> None:
    """`/reset_prefix_cache` comes with the next step: only that step's blocks are left."""
    ids = prompt(5)
    stand.ask(COMPLETIONS, {"prompt": ids})
    before = stand.equal()
    stand.ask_engine("/reset_prefix_cache")
    stand.ask_engine(COMPLETIONS, {"model": "tiny", "prompt": prompt(2), "max_tokens": 1})
    stand.until("the reset was heard", lambda: len(stand.held.blocks()) == 2)
    assert not stand.equal() & before
    again = stand.ask(COMPLETIONS, {"prompt": ids})
    assert again.predicted == again.cached == 0


def test_an_engine_that_is_killed_and_comes_back_is_empty(stand: Stand) -> None:
    """SIGKILL, and a new process in its place: nothing of its former life is expected, and trust is proven anew."""
    ids = prompt(6)
    stand.ask(COMPLETIONS, {"prompt": ids})
    assert len(stand.equal()) >= 6
    stand.kill("engine")
    stand.until("the router takes no request there", lambda: stand.replica().get("state") != "ready")
    stand.start_engine()
    stand.until("the router takes requests there", lambda: stand.replica().get("state") == "ready")
    prove(stand)
    stand.equal()
    again = stand.ask(COMPLETIONS, {"prompt": ids})
    assert again.predicted == again.cached == 0
    once_more = stand.ask(COMPLETIONS, {"prompt": ids})
    assert once_more.predicted == once_more.cached == 6 * BLOCK_SIZE
    assert len(stand.equal()) >= 6


def test_an_agent_that_comes_late_knows_what_was_there_before(stand: Stand) -> None:
    """It reads the engine's events again from the first, with what happened while there was no agent."""
    stand.stop("agent")
    ids = prompt(7)
    stand.ask_engine(COMPLETIONS, {"model": "tiny", "prompt": ids, "max_tokens": 1})
    stand.start_agent()
    stand.until("the router trusts the engine", stand.trusted)
    stand.equal()
    answer = stand.ask(COMPLETIONS, {"prompt": ids})
    assert answer.predicted == answer.cached == 7 * BLOCK_SIZE


@pytest.fixture(scope="module")
def two_ranks(tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An engine of two data-parallel ranks, each with a cache and sockets of its own."""
    import redis

    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    options = ("--data-parallel-size", "2")
    core = min(os.sched_getaffinity(0))
    cores = "|".join([str(core), str(max(os.sched_getaffinity(0)))])  # of each rank
    environment = {"VLLM_CPU_OMP_THREADS_BIND": cores}
    stand = Stand(tmp_path_factory.mktemp("ranks"), valkey_server, tiny_model, core, options, environment, ranks=2)
    try:
        stand.start_engine()
        stand.start_router(tokenizer=str(TOKENIZER))
        stand.start_agent()
        yield stand
    finally:
        stop_all(list(stand.children.values()), grace_s=20.0)
        stand.held.close()


def test_ranks_are_caches_of_their_own(two_ranks: Stand) -> None:
    """A prompt that one rank holds is expected there alone; the router asks for that rank, and it is delivered."""
    stand = two_ranks
    prove(stand)
    for rank in (0, 1, 1, 0):
        ids = prompt(6)
        headers = {"x-data-parallel-rank": str(rank)}
        first = stand.ask_engine(COMPLETIONS, {"model": "tiny", "prompt": ids, "max_tokens": 1}, **headers)
        assert first.cached == 0
        held, other = stand.equal(rank), stand.equal(1 - rank)
        assert not held & other
        decision = call(stand.router, "POST", f"/admin/explain?path={COMPLETIONS}", {"model": "tiny", "prompt": ids})
        matched = {item["unit"]: item["matched_tokens"] for item in decision.json["candidates"]}
        assert matched == {f"r0/{rank}": 6 * BLOCK_SIZE, f"r0/{1 - rank}": 0}
        answer = stand.ask(COMPLETIONS, {"prompt": ids})
        assert answer.predicted == answer.cached == 6 * BLOCK_SIZE
