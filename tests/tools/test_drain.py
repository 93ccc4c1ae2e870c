"""`warmroute drain`: the order and the wait, against a router's admin application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router import cli
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
