"""Our own Valkey."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from router.tools import local_valkey
from router.tools.processes import StartError, stop_all


def test_it_answers_and_keeps_nothing(tmp_path: Path) -> None:
    """The URL is the new server's, writing works, and no dump is left when it ends."""
    child, url = local_valkey.start_valkey(tmp_path)
    with redis.Redis.from_url(url) as client:
        client.set("warm", "route")
        assert client.get("warm") == b"route"
        assert client.info("server")["process_id"] == child.pid
    stop_all([child])
    assert child.exit_code() == 0
    assert not list(tmp_path.glob("*.rdb"))


def test_a_taken_port_is_not_mistaken_for_ours(
    tmp_path: Path, valkey_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another Valkey has the port, its answers do not count: another port is tried, and in the end given up."""
    taken = int(valkey_server.rsplit(":", 1)[1].split("/")[0])
    monkeypatch.setattr(local_valkey, "_free_port", lambda: taken)
    with pytest.raises(StartError, match=r"5 tries:(.|\n)*Address already in use"):
        local_valkey.start_valkey(tmp_path)
