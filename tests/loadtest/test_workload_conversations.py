"""Sessions: seeded, of the lengths asked for, sharing what they should share."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtest.workloads.conversations import MIXES, ChatShape, DocumentShape, Kind, Mix, Session, SingleShape, Workload
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.text import TextMaker, tokenizer_folder

TEXT = ChatText.load(tokenizer_folder())
MAKER = TextMaker(TEXT.tokenizer)


def sessions(mix: Mix, count: int = 60, seed: int = 5) -> list[Session]:
    workload = Workload(mix, MAKER, seed)
    return [workload.session(index) for index in range(count)]


def length(text: str) -> int:
    return len(TEXT.encode(text))


def test_a_session_depends_on_seed_and_index_alone() -> None:
    """Asked for in another order, by another worker, a session is the same; with another seed it is not."""
    forward = sessions(Mix())
    workload = Workload(Mix(), MAKER, 5)
    assert [workload.session(index) for index in reversed(range(60))] == forward[::-1]
    assert sessions(Mix(), seed=6) != forward


def test_all_kinds_come_in_a_mix() -> None:
    """The weights of a mix are kept: in 1,000 sessions each kind is within 5 percentage points of its share."""
    mix = Mix(
        chat=0.5,
        document=0.3,
        single=0.2,
        chat_shape=ChatShape(turns=(1, 1), user_tokens=(1, 2)),
        document_shape=DocumentShape(document_tokens=(1, 2), questions=(1, 1)),
        single_shape=SingleShape(prompt_tokens=(1, 2)),
    )
    counts = Counter(session.kind for session in sessions(mix, 1_000))
    shares = [counts[kind] / 1_000 for kind in (Kind.CHAT, Kind.DOCUMENT, Kind.SINGLE)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.05)


def test_chats_have_the_lengths_asked_for() -> None:
    """System prompt, turns, what users say and answers lie in the shape's ranges, in tokens."""
    shape = ChatShape(systems=3, system_tokens=77, turns=(2, 5), user_tokens=(10, 20), answer_tokens=(7, 9))
    for session in sessions(Mix(chat=1, document=0, single=0, chat_shape=shape)):
        assert length(session.system) == 77
        assert 2 <= len(session.turns) <= 5
        assert all(10 <= length(turn.text) <= 20 and 7 <= turn.answer_tokens <= 9 for turn in session.turns)


def test_chats_share_their_system_prompts() -> None:
    """No more different system prompts than the shape says, and each is used by several conversations."""
    counts = Counter(s.system for s in sessions(Mix(chat=1, document=0, single=0, chat_shape=ChatShape(systems=3))))
    assert len(counts) == 3
    assert min(counts.values()) > 5


def test_a_chat_turn_extends_the_turn_before() -> None:
    """The prompt of a turn, up to the answer, is a prefix of the next turn's prompt, token by token."""
    session = sessions(MIXES["chat"])[0]
    answers = ["made up", "by hand"]
    first, second = TEXT.token_ids([session.messages(1, answers[:1]), session.messages(2, answers)])
    assert second[: len(first)] == first
    assert len(second) > len(first) + length(session.turns[2].text)


def test_readers_of_a_window_share_its_documents() -> None:
    """In a window of 16 sessions there are two documents, and the next window has others."""
    shape = DocumentShape(window=16, documents=2, document_tokens=(50, 60), questions=(2, 2), question_tokens=(5, 5))
    made = sessions(Mix(chat=0, document=1, single=0, document_shape=shape), 32)
    documents = [{turn.text.split("\n\n")[0] for s in part for turn in s.turns} for part in (made[:16], made[16:])]
    assert [len(part) for part in documents] == [2, 2]
    assert not documents[0] & documents[1]
    assert all(50 <= length(text) <= 60 for part in documents for text in part)


def test_a_document_question_does_not_carry_the_ones_before() -> None:
    """Each question is the document and itself."""
    session = sessions(MIXES["documents"])[0]
    assert session.messages(1, ["an answer"]) == [{"role": "user", "content": session.turns[1].text}]


def test_single_prompts_share_nothing() -> None:
    """No two prompts without reuse begin alike: their first block, after the template's head, differs."""
    made = sessions(MIXES["no-reuse"])
    heads = {tuple(ids[3:19]) for ids in TEXT.token_ids([session.messages(0, []) for session in made])}
    assert len(heads) == len(made)
