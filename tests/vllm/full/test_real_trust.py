"""What router and doctor say of a real engine that is set up otherwise than they think: which, why, what to type.

In order: each test takes the processes as the one before left them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.tools.processes import stop_all
from tests.vllm.engines import BLOCK_SIZE, TOKENIZER, call
from tests.vllm.full.plans import THINKING
from tests.vllm.full.stand import CHAT, COMPLETIONS, Stand, doctor

pytestmark = pytest.mark.vllm_full

DOWN_AFTER, UP_AFTER = 5, 20
"""Mismatches that end trust, and good predictions in a row that bring it back (docs/operations.md)."""
_numbers = itertools.count(1)


def chat() -> dict[str, Any]:
    """A chat of several blocks that begins as no other."""
    number = next(_numbers)
    words = f"Letter {number} lies in bag {number * 7}, and bag {number * 7} is on the train to town {number * 13}. "
    return {"messages": [{"role": "user", "content": f"{number}. " + words * 8}]}


def text() -> dict[str, Any]:
    """The same as a completion."""
    return {"prompt": chat()["messages"][0]["content"]}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `--chat-template` that is not the model's own."""
    file = tmp_path_factory.mktemp("template") / "engine.jinja"
    file.write_text(THINKING.replace("<|im_start|>", "<|im_start|>the "), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def stand(
    tiny_model: Path, template: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand]:
    """An engine with a template of its own; no agent and no router yet."""
    import redis

    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    core = min(os.sched_getaffinity(0))
    options = ("--chat-template", str(template))
    stand = Stand(tmp_path_factory.mktemp("trust"), valkey_server, tiny_model, core, options)
    try:
        stand.start_engine()
        yield stand
    finally:
        stop_all(list(stand.children.values()), grace_s=20.0)
        stand.held.close()


def test_doctor_finds_nothing_wrong_with_a_sound_engine(stand: Stand, template: Path) -> None:
    """Told what the engine is started with, it ends with 0."""
    known = ("--tokenizer", str(TOKENIZER), "--chat-template", str(template), "--block-size", str(BLOCK_SIZE))
    code, page = doctor("--engine", stand.engine, *known)
    assert code == 0, page


def test_doctor_names_a_wrong_block_size(stand: Stand, template: Path) -> None:
    """Both sizes, and the end is 1."""
    known = ("--tokenizer", str(TOKENIZER), "--chat-template", str(template))
    code, page = doctor("--engine", stand.engine, *known, "--block-size", "16")
    assert code == 1
    assert f"the engine says {BLOCK_SIZE} tokens a block" in page
    assert "16" in page


def test_doctor_names_a_wrong_template(stand: Stand) -> None:
    """With the first token that differs and the option that would be right."""
    code, page = doctor("--engine", stand.engine, "--tokenizer", str(TOKENIZER))
    assert code == 1
    assert "--chat-template" in page
    assert "differ" in page


def test_chats_by_another_template_are_distrusted(stand: Stand) -> None:
    """Named with the reason in the log, /admin/replicas and warmroute_replica_trust; completions stay exact."""
    stand.start_router()
    stand.start_agent()  # which knows of no --chat-template, and publishes the model's own
    stand.until("the router trusts the engine's hashes", stand.trusted)
    stand.until("the agent's tokenizer is in use", lambda: text_source(stand) == "agent")
    for _ in range(2):
        answer = stand.ask(COMPLETIONS, text())
        stand.settle()
        assert answer.predicted == answer.cached
    for _ in range(DOWN_AFTER):
        stand.ask(CHAT, chat())
    stand.until("chats are distrusted", lambda: stand.prediction("chat").get("state") == "distrusted")
    told = stand.prediction("chat")
    assert (told["reason"], told["trust"], told["mismatched"]) == ("template", "approximate", DOWN_AFTER)
    assert "chat_template" in told["explanation"]
    assert stand.prediction("completion")["trust"] == "exact"
    assert stand.metric("warmroute_replica_trust", replica="r0", model="tiny", state="distrusted") == 1
    [line] = stand.log("router", "predictions fail")
    assert all(fact in line for fact in ("unit=r0/0", "model=tiny", "kind=chat", "reason=template"))
    code, page = doctor("--router", stand.router)
    assert code == 1
    assert "chat_template" in page


def test_trust_is_back_after_as_many_good_predictions(stand: Stand, template: Path) -> None:
    """The agent is told the engine's template, the router takes it from there; 19 good ones are not enough."""
    before = texts(stand)
    stand.kill("agent")  # one that ends in order takes its replica, and what is known of it, along
    stand.start_agent("--chat-template", str(template))
    stand.until("the router renders by the other template", lambda: texts(stand) not in ([], before))
    stand.until("the router trusts the engine's hashes", stand.trusted)
    good = stand.prediction("chat")["good"]
    for number in range(1, UP_AFTER + 1):
        assert stand.prediction("chat")["state"] == "distrusted"
        stand.ask(CHAT, chat())
        stand.until("it was judged", lambda number=number: stand.prediction("chat")["good"] == good + number)
    assert (stand.prediction("chat")["state"], stand.prediction("chat")["trust"]) == ("vouched", "exact")
    assert stand.log("router", "predictions hold again")
    assert stand.metric("warmroute_replica_trust", replica="r0", model="tiny", state="distrusted") == 0
    assert stand.metric("warmroute_replica_trust", replica="r0", model="tiny", state="exact") == 1
    body = chat()
    stand.ask(CHAT, body)
    stand.settle()
    again = stand.ask(CHAT, body)
    assert again.predicted == again.cached > 0
    code, page = doctor("--router", stand.router)
    assert code == 0, page


def texts(stand: Stand) -> list[Any]:
    """Where the router has each model's tokenizer from."""
    return list(call(stand.router, "GET", "/admin/replicas").json["texts"])


def text_source(stand: Stand) -> str:
    """The same of the only model, in a word."""
    return str(texts(stand)[0]["source"])
