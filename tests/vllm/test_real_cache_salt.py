"""What isolation rests on, at real engines: the last of equal keys holds, and tenants share no block."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from typing import Any

import pytest
import yaml

from router.request.auth.isolation import salted
from router.request.auth.tenants import Tenant
from tests.vllm.engines import BLOCK_SIZE, MODEL, TOKENIZER, Answer, call

pytestmark = pytest.mark.vllm

_numbers = itertools.count(1_000)
WORDS = "letter street bag train water town clerk office list road".split()
TENANT = Tenant("acme", b"a secret of enough length")


def text() -> str:
    """Some 150 tokens and more that no other test has sent."""
    rng = random.Random(next(_numbers))
    return f"Salted {rng.random()}: " + " ".join(rng.choice(WORDS) for _ in range(120))


SHAPES = {
    "/v1/completions": lambda prompt: {"prompt": prompt, "max_tokens": 1},
    "/v1/chat/completions": lambda prompt: {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1},
    "/v1/responses": lambda prompt: {"input": prompt, "max_output_tokens": 1},
    "/v1/messages": lambda prompt: {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1},
}


def hits(fleet: Any, replica: str) -> int:
    """Tokens that an engine took from its cache since its start."""
    lines = call(fleet.engines[replica], "GET", "/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in found))


def hit(fleet: Any, path: str, body: bytes) -> int:
    """Tokens that one request took from r0's cache."""
    before = hits(fleet, "r0")
    answer = call(fleet.engines["r0"], "POST", path, body)
    assert answer.status == 200, answer.text
    fleet.until("the engine has counted", lambda: True)
    return hits(fleet, "r0") - before


@pytest.mark.parametrize("path", SHAPES)
def test_the_last_salt_of_a_body_holds(fleet: Any, path: str) -> None:
    """On each kind of endpoint, also when an earlier one is spelled with escapes, and as the router writes it."""
    plain = json.dumps({"model": MODEL, "temperature": 0, **SHAPES[path](text())}).encode()[:-1]
    alone = plain + b',"cache_salt":"mine"}'
    assert hit(fleet, path, plain + b',"cache_salt":"other","cache_salt":"mine"}') == 0
    assert hit(fleet, path, plain + b',"cache_salt":"other"}') == 0
    whole = hit(fleet, path, alone)
    assert whole >= 2 * BLOCK_SIZE
    assert hit(fleet, path, b'{"\\u0063ache_salt":"third",' + alone[1:]) == whole
    assert hit(fleet, path, plain + b',"cache_salt":"third"}') == 0
    ours = salted(plain + b',"cache_salt":"mine"}', TENANT)
    assert hit(fleet, path, ours) == 0
    assert hit(fleet, path, plain + b',"cache_salt":"%s"}' % TENANT.salt("mine").encode()) == whole
    assert hit(fleet, path, salted(plain + b"}", TENANT)) == 0
    assert hit(fleet, path, salted(plain + b"}", TENANT)) == whole


@pytest.fixture(scope="module")
def tenants(fleet: Any) -> Any:
    """A second router before the same engines, with two isolated tenants; `ask(tenant, path, body)`."""
    names = ("acme", "beta")
    config = {
        "listen": "127.0.0.1:0",
        "models": [{"name": MODEL, "tokenizer": str(TOKENIZER)}],
        "redis": fleet.redis_url,
        "admin": {"listen": "127.0.0.1:0"},
        "isolation": {"secret": "a secret of enough length"},
        "tenants": [
            {"name": name, "keys": [hashlib.sha256(f"key-{name}".encode()).hexdigest()], "tells_cached": True}
            for name in names
        ],
    }
    file = fleet.folder / "tenants.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    ready = fleet.start_warmroute("router-tenants", "router", "--config", str(file))

    def trusted() -> bool:
        replicas = call(ready["admin"], "GET", "/admin/replicas").json["replicas"]
        return [unit["trust"] for replica in replicas for unit in replica["units"]] == ["exact", "exact"]

    fleet.until("the router with tenants trusts both replicas", trusted, 60.0)

    def ask(tenant: str, path: str, body: dict[str, Any]) -> Answer:
        body = {"model": MODEL, "temperature": 0, "max_tokens": 2, **body}
        answer = call(ready["http"], "POST", path, body, {"authorization": f"Bearer key-{tenant}"})
        assert answer.status == 200, answer.text
        return answer

    yield ask
    fleet.stop("router-tenants")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_tenants_share_no_block_and_hits_stay_exact(fleet: Any, tenants: Any, path: str) -> None:
    """What one tenant has cached is nothing to another; within a tenant the prediction is the engine's own figure."""
    body = SHAPES[path](text()) | {"max_tokens": 2}
    first = tenants("acme", path, body)
    assert (first.cached, first.predicted) == (0, 0)
    whole = (first.prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    other = tenants("beta", path, body)
    assert (other.cached, other.predicted) == (0, 0)

    def again(tenant: str, before: Answer) -> Answer | None:
        answer = tenants(tenant, path, body)
        return answer if answer.predicted else None

    for tenant, before in (("acme", first), ("beta", other)):
        answer = fleet.until(f"{tenant}'s blocks are known", lambda t=tenant, b=before: again(t, b))
        assert answer.cached == answer.predicted == whole > 0
    unsalted = fleet.ask(path, body)
    assert unsalted.cached == unsalted.predicted == 0
