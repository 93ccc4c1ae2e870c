"""`record`: real requests through a real router, simulated afterwards."""

from __future__ import annotations

import itertools
import json

from router.cli import main
from router.tools.local_fleet import EngineOptions, LocalFleet


def trust(client) -> str:
    """How far the only unit is believed."""
    _, _, answer = client.send("GET", "/admin/replicas")
    return answer["replicas"][0]["units"][0]["trust"]


async def test_a_recorded_conversation_hits_in_the_simulation(tmp_path, client_of, capsys, eventually) -> None:
    """Each turn of a growing prompt hits the blocks of the one before it, and no text is in the file."""
    path = tmp_path / "trace.jsonl"
    prompt = "All happy families are alike; each unhappy family is unhappy in its own way. " * 20
    with LocalFleet(EngineOptions(num_blocks=500), 1, router={"record": str(path)}) as fleet:
        client = client_of(fleet.router.http)
        # Until the engine's scheme is proven by what it stores, prompts have names that no other has.
        assert client.send("POST", "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 2})[0] == 200
        await eventually(lambda: trust(client) == "exact", timeout_s=30)
        for turn in range(1, 6):
            body = {"model": "tiny", "prompt": prompt * turn, "max_tokens": 2}
            assert client.send("POST", "/v1/completions", body)[0] == 200
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(recorded) == 6
    assert "happy" not in path.read_text()
    assert (
        main(["simulate", "--trace", str(path), "--replicas", "1", "--blocks", "500", "--policy", "cost", "--json"])
        == 0
    )
    row = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][0]
    total = sum(len(line["hash_ids"]) for line in recorded)
    recorded = recorded[1:]
    names = [line["hash_ids"] for line in recorded]
    shared = sum(len(set(before) & set(after)) for before, after in itertools.pairwise(names))
    assert shared >= sum(line["input_length"] // 64 - 1 for line in recorded[:-1])
    assert row["hit_rate"] * total >= shared - 0.1
