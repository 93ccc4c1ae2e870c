"""An engine's life at the real thing: eviction, reset, death, a late agent. After each the index is the engine's.

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
from tests.vllm.engines import BLOCK_SIZE, TOKENIZER, Answer
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
        stand.prove()
        yield stand
    finally:
        stop_all(list(stand.children.values()), grace_s=20.0)
        stand.held.close()


def test_eviction_is_followed_block_for_block(stand: Stand) -> None:
    """Prompts of 30 times the cache go through it: what is left is known, and every prediction is delivered."""
    rng = random.Random(3)
    sent: list[list[int]] = []
    sizes = []
    for _ in range(200):
        again = sent and rng.random() < 0.3
        ids = rng.choice(sent[-8:]) if again else prompt(rng.randint(1, 12))
        sent.append(ids)
        assert told_truth(stand.ask(COMPLETIONS, {"prompt": ids}))
        sizes.append(len(stand.settle()))
    assert BLOCKS // 2 < max(sizes) < BLOCKS
    oldest = stand.ask(COMPLETIONS, {"prompt": sent[0]})
    assert oldest.predicted == oldest.cached == 0


def test_a_reset_empties_the_index(stand: Stand) -> None:
    """`/reset_prefix_cache` comes with the next step: only that step's block is left."""
    ids = prompt(5)
    stand.ask(COMPLETIONS, {"prompt": ids})
    before = stand.settle()
    stand.ask_engine("/reset_prefix_cache")
    after = stand.settle()
    assert len(after) == 1
    assert not after & before
    again = stand.ask(COMPLETIONS, {"prompt": ids})
    assert again.predicted == again.cached == 0


def test_an_engine_that_is_killed_and_comes_back_is_empty(stand: Stand) -> None:
    """SIGKILL, and a new process in its place: nothing of its former life is expected, and trust is proven anew."""
    ids = prompt(6)
    stand.ask(COMPLETIONS, {"prompt": ids})
    assert len(stand.settle()) >= 7
    stand.kill("engine")
    stand.until("the router takes no request there", lambda: stand.replica().get("state") != "ready")
    stand.start_engine()
    stand.until("the router takes requests there", lambda: stand.replica().get("state") == "ready")
    stand.prove()
    stand.settle()
    again = stand.ask(COMPLETIONS, {"prompt": ids})
    assert again.predicted == again.cached == 0
    stand.settle()
    once_more = stand.ask(COMPLETIONS, {"prompt": ids})
    assert once_more.predicted == once_more.cached == 6 * BLOCK_SIZE


def test_an_agent_that_comes_late_knows_what_was_there_before(stand: Stand) -> None:
    """It reads the engine's events again from the first, with what happened while there was no agent."""
    stand.stop("agent")
    ids = prompt(7)
    stand.ask_rank(0, ids)
    stand.start_agent()
    stand.until("the router trusts the engine", stand.trusted)
    stand.settle()
    answer = stand.ask(COMPLETIONS, {"prompt": ids})
    assert answer.predicted == answer.cached == 7 * BLOCK_SIZE
