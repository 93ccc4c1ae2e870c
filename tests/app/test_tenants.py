"""Tenants along the whole path: simulated engines with agents, Redis, routers as processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

KEYS = {name: {"authorization": f"Bearer key-{name}"} for name in ("acme", "beta", "open")}
TEXT = "the letter that went by the night train is in the third bag from the left, said the clerk; " * 6


def tenants(**acme: Any) -> dict[str, Any]:
    listed = [
        {"name": name, "keys": [hashlib.sha256(f"key-{name}".encode()).hexdigest()], "tells_cached": True}
        for name in KEYS
    ]
    listed[0].update(acme)
    listed[2].update(isolated=False, tells_cached=False)
    return {"tenants": listed, "isolation": {"secret": "a secret of enough length"}, "admin": {"listen": "127.0.0.1:0"}}


def body(text: str = TEXT, **changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **changes}


@pytest.fixture
def guarded(fleet: Any, client_of: Callable[[str], Any], router_process: Callable[..., Any]) -> Callable[..., Any]:
    """`guarded(...)`: another router before the fleet, with tenants."""
    for number, engine in enumerate(fleet.engines):
        # An agent proves the hash scheme by the first root block that it sees.
        assert client_of(engine.http).send("POST", "/v1/chat/completions", body(f"{number} {TEXT}"))[0] == 200

    def make(**changes: Any) -> Any:
        return router_process(replicas=[], redis=fleet.redis_url, **{**tenants(), **changes})

    return make


async def ready(router: Any, eventually: Any) -> None:
    def is_ready() -> bool:
        _, _, answer = router.admin.send("GET", "/admin/replicas")
        trusts = [unit["trust"] for replica in answer["replicas"] for unit in replica["units"]]
        return trusts == ["exact", "exact"]

    await eventually(is_ready, timeout_s=30)


async def test_tenants_share_no_block_and_hits_are_exact(guarded: Any, eventually: Any) -> None:
    """One tenant's prefix is nothing to another; its own is found, as predicted, by the salted chain."""
    router = guarded()
    await ready(router, eventually)

    def ask(name: str) -> tuple[int, int]:
        status, headers, answer = router.client.send("POST", "/v1/chat/completions", body(), **KEYS[name])
        assert status == 200, answer
        delivered = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return int(headers.get("x-warmroute-matched-tokens", -1)), delivered

    assert ask("acme") == (0, 0)
    assert ask("beta") == (0, 0)
    assert ask("open") == (-1, 0)
    for name in ("acme", "beta"):
        predicted, delivered = await eventually(lambda name=name: (found := ask(name))[0] and found)
        assert predicted == delivered > 64
    await eventually(lambda: ask("open")[1] > 64)
    text = router.admin.send("GET", "/metrics")[2].decode()
    assert 'warmroute_tenant_requests_total{status="2xx",tenant="acme"}' in text
    assert 'warmroute_tenant_tokens_total{kind="cached",tenant="beta"}' in text


async def test_two_routers_share_a_limit(guarded: Any, eventually: Any) -> None:
    """A minute's worth in all, by Redis, and not one for each router."""
    limited = tenants(requests_per_minute=100)
    routers = [guarded(**limited), guarded(**limited)]
    for router in routers:
        await ready(router, eventually)

    def left(router: Any) -> int:
        status, headers, _ = router.client.send("GET", "/v1/models", **KEYS["acme"])
        assert status == 200
        return int(headers["x-ratelimit-remaining-requests"])

    for router in routers:
        await eventually(lambda router=router: left(router) <= 60, timeout_s=30)


async def test_engines_with_a_key_tell_what_they_serve(router_process: Any, tmp_path: Any, eventually: Any) -> None:
    """The router's own requests carry `upstream.api_key`, and clients' keys are replaced by it."""
    from router.tools.local_fleet import EngineOptions, LocalFleet

    options = EngineOptions(num_blocks=64, extra=("--api-key", "engine-key"))
    with LocalFleet(options, replicas=1, agents=False, router={"upstream": {"api_key": "engine-key"}}) as fleet:
        url = fleet.engines[0].http
        router = router_process(replicas=[{"url": url}], upstream={"api_key": "engine-key"}, **tenants())
        await eventually(lambda: router.admin.send("GET", "/readyz")[0] == 200, timeout_s=30)
        _, _, models = router.client.send("GET", "/v1/models", **KEYS["acme"])
        assert [model["id"] for model in models["data"]] == ["tiny"]
        status, _, answer = router.client.send("POST", "/v1/chat/completions", body(), **KEYS["acme"])
        assert status == 200, json.dumps(answer)


async def test_tenants_are_read_anew(guarded: Any, tmp_path: Any, eventually: Any) -> None:
    """A key that is added or taken away holds within seconds, without a restart."""
    file = tmp_path / "tenants.yaml"
    listed = tenants()["tenants"]
    file.write_text(json.dumps(listed))
    router = guarded(tenants=str(file))
    await ready(router, eventually)
    new = {"authorization": "Bearer key-new"}
    assert router.client.send("GET", "/v1/models", **new)[0] == 401
    listed[0]["keys"] = [hashlib.sha256(b"key-new").hexdigest()]
    file.write_text(json.dumps(listed))
    await eventually(lambda: router.client.send("GET", "/v1/models", **new)[0] == 200)
    status, headers, answer = router.client.send("GET", "/v1/models", **KEYS["acme"])
    assert (status, answer["error"]["code"], headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
