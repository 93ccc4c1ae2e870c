"""`warmroute explain`: what a router's admin says of a request or a body, as a table and a sentence."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router import cli
from tests.telemetry.placed import outcome, prompt

BODY = {"model": "tiny", "prompt": "word " * 80}
Explain = Callable[..., Any]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    """`await explain(admin, *words)`: exit code, output, errors."""

    async def run(admin: Any, *words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(cli.main, ["explain", *words, "--router", admin.url])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


async def test_a_request_is_explained_by_its_id(admins: Any, explain: Explain) -> None:
    """Each candidate's figures, the winner marked, one sentence, and what came of it."""
    admin = await admins()
    admin.announce("r0", 9001)
    admin.announce("r1", 9002)
    one = prompt(161)
    unit = admin.fleet.units["r1/0"]
    admin.index.store(unit.slot, one.chain(unit.scheme, None)[:8])
    placement = admin.placer.place(one, "why-1", 0.0)
    admin.recorder.placed(placement.decision, 0.0)
    admin.placer.finish(placement, 0.2, outcome(112, 161))
    code, told, _ = await explain(admin, "why-1")
    lines = told.splitlines()
    assert code == 0
    assert lines[0].startswith("why-1: model tiny, policy cost, 161 prompt tokens, price 1")
    figures = "unit trust matched gpu cpu disk expected uncached waiting running"
    terms = placement.decision.to_dict()["candidates"][0]["terms"]
    assert lines[2].split() == [*figures.split(), *terms, "cost"]
    assert lines[3].split()[:9] == ["->", "r1/0", "exact", "128", "128", "0", "0", "128", "33"]
    assert lines[4].split()[:3] == ["r0/0", "exact", "0"]
    assert "r1 won by its prefix: it holds 128 of 161 tokens, 128 more than r0" in told
    assert "The engine had 112 tokens cached, 16 fewer than predicted." in told
    assert lines[-1] == "Status 200, first token after 100 ms, ended after 200 ms."


async def test_a_body_is_explained_and_not_sent(
    admins: Any, explain: Explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file, under the policy and weights that are given, as JSON when wanted."""
    admin = await admins()
    admin.announce("r0", 9001)
    admin.announce("r1", 9002)
    file = tmp_path / "body.json"
    file.write_text(json.dumps(BODY))
    code, told, _ = await explain(
        admin, "--body", str(file), "--policy", "round-robin", "--weight", "price_base=3", "--json"
    )
    decision = json.loads(told)
    assert (code, decision["policy"], decision["price"]) == (0, "round-robin", 3)
    code, told, _ = await explain(admin, "--body", str(file))
    assert code == 0
    assert told.startswith("this body: model tiny, policy cost")
    assert sum(unit.in_flight.requests for unit in admin.fleet.units.values()) == 0
    assert len(admin.decisions) == 0


async def test_what_the_router_refuses_is_exit_code_1(admins: Any, explain: Explain, tmp_path: Path) -> None:
    """An id that is not kept, a model that nobody serves, a weight that does not exist: in the router's words."""
    admin = await admins()
    admin.announce("r0", 9001)
    file = tmp_path / "body.json"
    file.write_text(json.dumps({**BODY, "model": "other"}))
    assert "no decision with this request id" in (await explain(admin, "nobody"))[2]
    assert "does not exist" in (await explain(admin, "--body", str(file)))[2]
    file.write_text(json.dumps(BODY))
    code, _, error = await explain(admin, "--body", str(file), "--weight", "prize_base=3")
    assert code == 1
    assert "prize_base" in error


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ((), "REQUEST-ID or --body"),
        (("q", "--body", "-"), "REQUEST-ID or --body"),
        (("q", "--policy", "cost"), "are for --body alone"),
        (("--body", "/no/such/file"), "can't read /no/such/file"),
        (("--body", "/dev/null", "--weight", "price_base"), "is no NAME=NUMBER"),
    ],
)
def test_wrong_options_are_exit_code_2(words: tuple[str, ...], wrong: str, capsys: Any) -> None:
    """And say what is wrong, all at once with the router's address."""
    assert cli.main(["explain", *words]) == 2
    error = capsys.readouterr().err
    assert wrong in error
    assert "--router" in error


def test_the_command_needs_no_more_than_a_router_has() -> None:
    """No rich, no textual: an operator's pod has the extra `router`."""
    import subprocess

    code = "import sys, router.tools.explain; print('rich' in sys.modules, 'aiohttp' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]
