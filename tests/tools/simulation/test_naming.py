"""Blocks by name: equal where the text would be equal, and nowhere else."""

from __future__ import annotations

import random

from loadtest.workloads.conversations import ChatShape, Mix, Workload
from router.tools.simulation.naming import BlockNames, TagMaker, named


def test_names_follow_tokens_not_pieces() -> None:
    """Blocks of 4: the third begins inside a piece; a change in the second changes all names from there on."""
    names = BlockNames(4)
    first = names.chain([(1, 6), (2, 7)])
    assert len(first) == 3
    assert names.chain([(1, 6), (2, 6)]) == first
    assert names.chain([(1, 6), (2, 1), (3, 6)])[0] == first[0]
    assert not set(names.chain([(1, 6), (2, 1), (3, 6)])[1:]) & set(first)
    assert names.chain([(1, 6), (2, 5)]) == first[:2]


def test_a_session_s_next_turn_begins_with_prompt_and_answer() -> None:
    """Whole blocks of a prompt and its answer are the first blocks of the prompt that follows."""
    mix = Mix(chat=1, document=0, single=0, chat_shape=ChatShape(turns=(4, 4)))
    spoken = Workload(mix, TagMaker(), 3).session(0)
    session = named(spoken, 7.0, BlockNames(16), random.Random(1))
    assert session.start_s == 7.0
    for before, after in zip(session.turns, session.turns[1:], strict=False):
        known = before.blocks + before.answer_blocks
        assert after.blocks[: len(known)] == known
        assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
        assert len(after.blocks) == after.prompt_tokens // 16


def test_sessions_share_a_system_prompt_and_nothing_after_it() -> None:
    """Two chats with one system prompt of 192 tokens and 3 of its header: 12 whole blocks of 16."""
    mix = Mix(chat=1, document=0, single=0, chat_shape=ChatShape(systems=1))
    workload, names, rng = Workload(mix, TagMaker(), 3), BlockNames(16), random.Random(1)
    one, two = (named(workload.session(index), 0.0, names, rng).turns[0] for index in range(2))
    shared = [a == b for a, b in zip(one.blocks, two.blocks, strict=False)]
    assert shared.index(False) == (3 + 192) // 16
