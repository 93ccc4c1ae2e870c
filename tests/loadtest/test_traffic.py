"""Which traffic is sent: the same for any number of workers, with prompts of exact lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.workloads.callers import Callers, read_keys
from loadtest.workloads.conversations import Kind, Session
from loadtest.workloads.presets import PRESETS
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.schedule import Stage
from loadtest.workloads.text import tokenizer_folder
from loadtest.workloads.traffic import Share, Traffic
from router.errors import ConfigurationError

FOLDER = tokenizer_folder()
TEXT = ChatText.load(FOLDER)


def sent(traffic: Traffic, share: Share) -> list[tuple[float, Session]]:
    return [(lane.start_s, session) for lane in traffic.lanes(FOLDER, share) for session in lane.sessions]


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_together_send_what_one_would(workers: int, tmp_path: Path) -> None:
    """The same sessions at the same times, each once: of a workload's arrivals, and of a trace."""
    trace = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    trace.write_text("\n".join(json.dumps(line | {"timestamp": 100 * number}) for number in range(10)))
    for traffic in (Traffic("mixed", own_stages=(Stage(5, 4), Stage(5, 4, 0))), Traffic("trace", trace=trace)):
        alone = sent(traffic, Share())
        shares = [sent(traffic, Share(number, workers)) for number in range(workers)]
        assert sorted((at_s, each.session_id) for share in shares for at_s, each in share) == sorted(
            (at_s, each.session_id) for at_s, each in alone
        )
        assert all(pair in alone for share in shares for pair in share)
        assert len(alone) >= 10


def test_users_of_all_workers_take_every_session_once() -> None:
    """Of a closed loop, whose users are shared out, too."""
    traffic = Traffic("no-reuse", users=5, sessions=11)
    taken = [session.session_id for n in range(3) for _, session in sent(traffic, Share(n, 3))]
    assert sorted(taken) == sorted(f"single-{index}" for index in range(11))
    assert [len(traffic.lanes(FOLDER, Share(number, 3))) for number in range(3)] == [2, 2, 1]


def lengths(name: str) -> set[tuple[Kind, int]]:
    """Return (kind, tokens) of the first turns of a workload's first sessions, without what the template adds."""
    sessions = Traffic(name).make_sessions(FOLDER)
    around = {
        bool(system): len(TEXT.token_ids([[*system, {"role": "user", "content": ""}]])[0])
        for system in ([], [{"role": "system", "content": ""}])
    }
    found = set()
    for _ in range(60):
        session = next(sessions)
        (ids,) = TEXT.token_ids([session.messages(0, [])])
        found.add((session.kind, len(ids) - around[bool(session.system)]))
    return found


def test_prompts_have_exactly_the_tokens_that_they_should() -> None:
    """By the model's template and tokenizer: fixed lengths are met to the token, ranges are kept."""
    groups = PRESETS["few-shot"].mix.group_shape
    assert lengths("few-shot") == {(Kind.GROUP, groups.system_tokens + groups.question_tokens)}
    small = PRESETS["llm-d-small"].mix.group_shape
    assert lengths("llm-d-small") == {(Kind.GROUP, small.system_tokens + small.question_tokens)} == {(Kind.GROUP, 900)}
    one = PRESETS["system-prompts"].mix.chat_shape
    chats = {tokens - one.system_tokens for _, tokens in lengths("system-prompts")}
    assert one.user_tokens[0] <= min(chats) <= max(chats) <= one.user_tokens[1]
    singles = {tokens for _, tokens in lengths("no-reuse")}
    assert 200 <= min(singles) <= max(singles) <= 700
    assert {kind for kind, _ in lengths("mixed")} == {Kind.CHAT, Kind.DOCUMENT, Kind.SINGLE}


def test_a_document_s_question_has_the_tokens_of_its_parts() -> None:
    """Document, an empty line, question: nothing merges across, so that the document is a prefix of whole blocks."""
    session = next(Traffic("documents").make_sessions(FOLDER))
    prompts = [turn.text.partition("\n\n") for turn in session.turns]
    assert len({document for document, _, _ in prompts}) == 1
    for document, gap, question in prompts:
        ids = [TEXT.encode(part) for part in (document, gap, question)]
        assert TEXT.encode(document + gap + question) == [*ids[0], *ids[1], *ids[2]]
        assert 900 <= len(ids[0]) <= 1_500
        assert 16 <= len(ids[2]) <= 64


def test_callers_share_sessions_evenly_and_stay_the_same() -> None:
    """Three tenants and two models: each pair has about a sixth of 3,000 sessions; keys are not shown."""
    callers = Callers(("base", "adapter"), ("key-a", "key-b", "key-c"))
    found = [callers.of(f"chat-{number}") for number in range(3_000)]
    assert found == [callers.of(f"chat-{number}") for number in range(3_000)]
    pairs = [(caller.model, caller.tenant, caller.key) for caller in found]
    assert len(set(pairs)) == 6
    for pair in set(pairs):
        assert abs(pairs.count(pair) - 500) < 5 * 500**0.5
    assert "key-a" not in repr(callers) + repr(found[:10])
    assert Callers(("base",)).of("x").tenant is None


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    """One a line; a file without any is refused."""
    file = tmp_path / "keys"
    file.write_text("# ours\nkey-a\n\n key-b \n")
    assert read_keys(file) == ("key-a", "key-b")
    file.write_text("#\n")
    with pytest.raises(ConfigurationError, match="holds no key"):
        read_keys(file)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_keys(tmp_path / "missing")
