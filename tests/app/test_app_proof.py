"""Proof while running, over real processes: what the router can't vouch for it finds out and names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet

FAST = EngineOptions(num_blocks=512, prefill_tokens_per_s=200_000, decode_step_s=0.001)
TINY_CACHE = EngineOptions(num_blocks=24, prefill_tokens_per_s=200_000, decode_step_s=0.001)
WRONG = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}[assistant]"
TEXT = "What a model stores under one name another one must find under the same, or all is computed again. "


def predictions(client: Any) -> dict[str, dict[str, Any]]:
    """What /admin/replicas says of each kind, of the only unit."""
    _, _, answer = client.send("GET", "/admin/replicas")
    [unit] = answer["replicas"][0]["units"]
    return {item["kind"]: item for item in unit["predictions"]}


async def prove(client: Any, eventually: Any) -> None:
    """Send one prompt of plain tokens, from which the agent proves the engine's scheme, and wait for that."""
    client.send("POST", "/v1/completions", {"model": "tiny", "prompt": list(range(100, 132)), "max_tokens": 1})

    def exact_and_followed() -> bool:
        _, _, answer = client.send("GET", "/admin/replicas")
        [unit] = answer["replicas"][0]["units"]
        return bool(unit["trust"] == "exact" and unit["blocks_age_s"] is not None)

    await eventually(exact_and_followed, what="the unit is exact and followed")


def trust_states(client: Any) -> set[str]:
    """The states of `warmroute_replica_trust` for the model."""
    lines = client.send("GET", "/metrics")[2].decode().split("\n")
    found = [line for line in lines if line.startswith('warmroute_replica_trust{model="tiny",replica="r0",')]
    return {line.split('state="')[1].split('"')[0] for line in found if line.endswith(" 1.0")}


def complete(client: Any, number: int) -> tuple[int, int]:
    """Send a completion; return predicted and delivered tokens."""
    body = {"model": "tiny", "prompt": f"completion {number}: {TEXT * 2}", "max_tokens": 2}
    status, headers, answer = client.send("POST", "/v1/completions", body)
    assert status == 200
    delivered = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(headers["x-warmroute-matched-tokens"]), delivered


@pytest.fixture
def misled(tmp_path: Path) -> Iterator[LocalFleet]:
    """One replica with its agent; the router was given another chat template than the engine's."""
    template = tmp_path / "wrong.jinja"
    template.write_text(WRONG)
    model = {"name": "tiny", "tokenizer": str(FAST.folder), "chat_template": str(template)}
    with LocalFleet(FAST, replicas=1, router={"models": [model]}) as running:
        yield running


@pytest.fixture
def fickle(tmp_path: Path) -> Iterator[LocalFleet]:
    """One replica; the router's template is the engine's, but for chats that begin with MISLED."""
    right = (FAST.folder / "chat_template.jinja").read_text()
    template = tmp_path / "fickle.jinja"
    template.write_text(
        "{% if messages[0].content.startswith('MISLED') %}" + WRONG + "{% else %}" + right + "{% endif %}"
    )
    model = {"name": "tiny", "tokenizer": str(FAST.folder), "chat_template": str(template)}
    with LocalFleet(FAST, replicas=1, router={"models": [model]}) as running:
        yield running


@pytest.fixture
def crowded() -> Iterator[LocalFleet]:
    """One replica whose cache holds two prompts at most."""
    with LocalFleet(TINY_CACHE, replicas=1) as running:
        yield running


async def test_a_wrong_template_is_found_out_within_20_chats_and_completions_stay_exact(
    misled: LocalFleet, client_of: Any, eventually: Any
) -> None:
    """Chats are named with the reason in admin, metric and log; they still find each other, by what is remembered."""
    client = client_of(misled.router.http)
    await prove(client, eventually)
    for number in range(20):
        client.chat(f"chat {number}: {TEXT}")
        complete(client, number % 10)
    await eventually(lambda: predictions(client).get("chat", {}).get("state") == "distrusted", what="chats distrusted")
    found = predictions(client)
    assert (found["chat"]["reason"], found["chat"]["trust"], found["chat"]["good"]) == ("template", "approximate", 0)
    assert "chat_template" in found["chat"]["explanation"]
    assert trust_states(client) == {"exact", "approximate", "distrusted"}

    completion = found["completion"]
    assert (completion["state"], completion["trust"], completion["mismatched"]) == ("vouched", "exact", 0)
    predicted, delivered = complete(client, 3)
    assert predicted == delivered > 0

    client.chat(f"remembered: {TEXT}")
    _, predicted, delivered, _ = client.chat(f"remembered: {TEXT}")
    assert predicted > 0
    assert delivered > 0

    [line] = [line for line in (misled.folder / "router.err").read_text().split("\n") if "predictions fail" in line]
    assert all(word in line for word in ("tiny", "chat", "r0/0"))


async def test_a_cache_that_evicts_all_the_time_is_never_called_a_mismatch(
    crowded: LocalFleet, client_of: Any, eventually: Any
) -> None:
    """Blocks that are gone when one looks were announced all the same."""
    client = client_of(crowded.router.http)
    await prove(client, eventually)
    for number in range(30):
        client.chat(f"crowded {number % 12}: {TEXT * 3}")
    await eventually(lambda: predictions(client)["chat"]["good"] >= 25, what="25 good verdicts")
    chats = predictions(client)["chat"]
    assert (chats["state"], chats["mismatched"]) == ("vouched", 0)
    _, _, answer = client.send("GET", "/admin/replicas")
    assert answer["replicas"][0]["units"][0]["blocks"] < TINY_CACHE.num_blocks  # of 12 prompts of 6 and more blocks


async def test_trust_comes_back_by_itself(fickle: LocalFleet, client_of: Any, eventually: Any) -> None:
    """Chats fail, then they hold: distrusted, and after twenty good ones exact again."""
    client = client_of(fickle.router.http)
    await prove(client, eventually)
    for number in range(8):
        client.chat(f"MISLED {number}: {TEXT}")
    await eventually(lambda: predictions(client).get("chat", {}).get("state") == "distrusted", what="chats distrusted")
    for number in range(22):
        client.chat(f"honest {number}: {TEXT}")
    await eventually(lambda: predictions(client)["chat"]["state"] == "vouched", what="chats vouched for again")
    assert trust_states(client) == {"exact"}
    _, predicted, delivered, _ = client.chat(f"honest 21: {TEXT}")
    assert predicted == delivered > 0
