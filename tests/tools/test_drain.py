"""`warmroute drain`: the order and the wait, against a router's admin application."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from router import cli
from router.tools.doctor_http import Server
from router.tools.drain import requests_at


def replica(*units: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": [{"replica": "r0", "units": list(units)}]}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (replica({"requests": 0, "load": {"running": 0, "waiting": 0}}), 0),
        (replica({"requests": 2, "load": {"running": 1, "waiting": 0}}), 2),
        (replica({"requests": 0, "load": {"running": 1, "waiting": 2}}, {"requests": 1, "load": None}), 4),
        (replica({"requests": 0, "load": None}), None),
        ({"replicas": []}, 0),
    ],
)
def test_what_is_left_is_the_larger_count_of_router_and_engine(listed: dict[str, Any], expected: int | None) -> None:
    """Other routers send there too; an engine that tells nothing is unknown, never idle; one that left has none."""
    assert requests_at(listed, "r0") == expected


def test_wrong_options_are_told_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, a line each."""
    code = cli.main(["drain", "r0", "--for-s", "0", "--wait", "-1", "--token-file", str(tmp_path / "none")])
    errors = capsys.readouterr().err
    assert (code, errors.count("\n")) == (2, 4)
    assert all(option in errors for option in ("--router", "--for-s", "--wait", "--token-file"))


def test_no_router_is_exit_code_1(unused_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, which says what failed."""
    assert cli.main(["drain", "r0", "--router", f"http://127.0.0.1:{unused_port}"]) == 1
    assert "refused" in capsys.readouterr().err


@pytest.fixture
def unused_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_replica_is_drained_and_let_again(
    golden: Path, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command against a router with an agent's replica and a configured one: what it says, and what came of it."""
    import asyncio
    import json

    from router.tools.processes import Child, stop_all, wait_for

    def warmroute(name: str, *words: str) -> Child:
        code = "import sys; from router.cli import main; sys.exit(main())"
        child = Child(name, [sys.executable, "-c", code, *words], tmp_path)
        children.append(child)
        return child

    def ready(child: Child) -> dict[str, Any]:
        line: dict[str, Any] = wait_for(f"{child.name} is ready", child.ready_line, children, 30.0)
        return line

    children: list[Child] = []
    model = ("--model", "tiny", "--tokenizer", str(golden / "tokenizer"))
    try:
        one, two = (warmroute(f"engine{n}", "simengine", *model) for n in range(2))
        urls = [ready(one)["http"], ready(two)["http"]]
        state = ("--state-dir", str(tmp_path / "state"))
        agent = warmroute(
            "agent", "agent", "--engine-url", urls[0], "--replica-id", "pod", "--redis", redis_url, *state
        )
        ready(agent)
        config = {
            "listen": "127.0.0.1:0",
            "models": [{"name": "tiny", "tokenizer": str(golden / "tokenizer")}],
            "replicas": [{"url": urls[1], "id": "static"}],
            "redis": redis_url,
        }
        (tmp_path / "router.yaml").write_text(json.dumps(config))
        router = ready(warmroute("router", "router", "--config", str(tmp_path / "router.yaml")))["admin"]

        def drain(*words: str) -> tuple[int, str]:
            code = cli.main(["drain", *words, "--router", router])
            output = capsys.readouterr()
            return code, output.out + output.err

        def states() -> dict[str, str]:
            listed = Server(router).get("/admin/replicas").object()["replicas"]
            return {item["replica"]: item["state"] for item in listed}

        def run() -> None:
            wait_for("both are there", lambda: states() == {"pod": "ready", "static": "ready"} or None, children, 30.0)
            code, said = drain("pod", "--wait", "20")
            assert (code, "every router" in said, "is idle" in said) == (0, True, True)
            code, said = drain("static")
            assert (code, "this router alone" in said) == (0, True)
            assert states() == {"pod": "draining", "static": "draining"}
            assert drain("nobody")[0] == 1
            assert drain("static", "--undo")[0] == 0
            assert drain("pod", "--undo")[0] == 0
            wait_for("both are back", lambda: states() == {"pod": "ready", "static": "ready"} or None, children, 30.0)

        await asyncio.to_thread(run)
    finally:
        stop_all(children)
