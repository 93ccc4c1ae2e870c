"""What goes along with traffic: things that are done to the system, and what other routers are started with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.driver.holding import Sending
from loadtest.workloads.callers import Callers
from loadtest.workloads.schedule import Stage
from loadtest.workloads.text import tokenizer_folder
from loadtest.workloads.traffic import Traffic
from router.config_placement import PlacementConfig
from router.errors import ConfigurationError
from router.tools.load.peers import PEERS
from router.tools.load.policies import ENGINE, LocalPlan, shrunk
from router.tools.load.sending import Happening, send
from router.tools.processes import Child, stop_all, wait_for


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[str]:
    child = Child("stub", [sys.executable, "-m", "loadtest.bench.stub"], tmp_path)
    try:
        yield wait_for("the stub", child.ready_line, [child], 30)["http"]
    finally:
        stop_all([child])


def test_things_happen_at_their_times_and_stand_in_the_report(stub: str) -> None:
    """In virtual seconds; what would come after the last answer does not happen. Every request has its caller."""
    happened: list[str] = []
    traffic = Traffic("no-reuse", own_stages=(Stage(4, 5),))
    happenings = [
        Happening(2.0, "r1 was killed", lambda: happened.append("r1")),
        Happening(500.0, "never", lambda: happened.append("never")),
    ]
    sending = Sending(Callers(("m", "a0"), ("key-a", "key-b")), time_scale=10.0)
    sent = send(stub, sending, traffic.stages, traffic.lanes(tokenizer_folder()), {}, happenings)
    assert happened == ["r1"]
    ((at_s, what),) = sent.events
    assert what == "r1 was killed"
    assert 2.0 <= at_s < 2.0 + 10 * 0.3  # 300 ms of a busy machine
    assert {record.cause for record in sent.driver.records} == {None}
    assert {record.model for record in sent.driver.records} == {"m", "a0"}
    assert {record.tenant for record in sent.driver.records} == {0, 1}


def test_a_request_that_takes_too_long_has_failed(stub: str) -> None:
    """After `timeout_s` virtual seconds: the stub's answers take 40 ms and more, which are 4 s here."""
    traffic = Traffic("no-reuse", own_stages=(Stage(4, 2),))
    sending = Sending(Callers(("m",)), time_scale=100.0, timeout_s=1.0)
    sent = send(stub, sending, traffic.stages, traffic.lanes(tokenizer_folder()))
    assert {record.cause for record in sent.driver.records} == {"timeout"}


def test_peers_are_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their own rule for prefix caches; one that is not installed is said to be missing, and how to get it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="pip install sglang-router"):
        PEERS["sglang-router"].path()
    for name in PEERS:
        command = tmp_path / name
        command.write_text(f"#!{sys.executable}\n")
        command.chmod(0o755)
        found = PEERS[name].command(1234, 1235, ["http://e0", "http://e1"])
        assert found[0] == str(command)
        assert found[found.index("--policy") + 1] == "cache_aware"
        assert found[-2:] == ["http://e0", "http://e1"]
    assert PEERS["sglang-router"].command(1, 2, [])[1] == "launch"
    assert PEERS["vllm-router"].version() == ""  # its Python has no such package


def test_a_shrunken_engine_takes_as_long_for_a_shrunken_prompt() -> None:
    """12,000 tokens at 8,000/s are 1.5 s, at any shrink; a cache holds as many prompts."""
    for shrink in (1, 8, 16):
        engine = shrunk(ENGINE, shrink)
        assert 12_000 / shrink / engine.prefill_tokens_per_s == pytest.approx(1.5)
        assert engine.decode_step_s * 320 / shrink == pytest.approx(8.0)
        assert (engine.num_blocks - 1) * engine.block_size == 1_024_000 // shrink


def test_the_router_s_figures_are_in_the_engines_seconds_and_tokens() -> None:
    """At 17 times the speed a second of backlog is 59 ms; a token that stands for 16 costs as 16 do."""
    usual = PlacementConfig.model_validate({})
    engine = replace(ENGINE, time_scale=17.0)
    told = PlacementConfig.model_validate(LocalPlan(engine=engine, shrink=16).placement)
    assert told.weights.price_per_backlog_s == 17 * usual.weights.price_per_backlog_s
    assert told.weights.running_tokens == usual.weights.running_tokens / 16
    assert told.tie_tokens == usual.tie_tokens / 16
    assert told.weights.price_max == usual.weights.price_max
