"""What requests and operators ask of placement, through real processes: policies, sessions, a shadow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from router.tools.local_fleet import EngineOptions, LocalFleet

FAST = EngineOptions(num_blocks=512, prefill_tokens_per_s=200_000, decode_step_s=0.001)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[dict[str, str]]]:
    """Three replicas, as a router's configuration lists them."""
    with LocalFleet(FAST, replicas=3, agents=False) as fleet:
        yield [{"url": engine.http, "id": f"r{number}"} for number, engine in enumerate(fleet.engines)]


@pytest.fixture
async def router_with(
    engines: list[dict[str, str]], router_process: Callable[..., Any], eventually: Callable[..., Any]
) -> Callable[..., Any]:
    """`await router_with(placement)`: a ready router over the three."""

    async def make(placement: dict[str, Any], **changes: Any) -> Any:
        router = router_process(replicas=engines, placement=placement, **changes)
        await eventually(lambda: 'replicas{state="ready"} 3' in router.admin.send("GET", "/metrics")[2].decode())
        return router

    return make


def ask(router: Any, text: str, **headers: str) -> tuple[int, str, Any]:
    """Send a completion; status, replica, answer."""
    body = {"model": "tiny", "prompt": text, "max_tokens": 1}
    status, found, answer = router.client.send("POST", "/v1/completions", body, **headers)
    return status, found.get("x-warmroute-replica", ""), answer


WARM = "the same words again and again, so that one of the replicas holds them and is the cheapest by far " * 3


async def test_a_request_chooses_its_policy_where_the_operator_allows_it(router_with: Callable[..., Any]) -> None:
    """Warm prompts stay by cost and go round by round-robin; decisions say which one chose."""
    router = await router_with({"request_policies": ["round-robin", "random"]})
    assert len({ask(router, WARM)[1] for _ in range(6)}) == 1
    turns = [ask(router, WARM, x_warmroute_policy="round-robin")[1] for _ in range(6)]
    assert Counter(turns) == {"r0": 2, "r1": 2, "r2": 2}
    assert router.metric('warmroute_decisions_total{policy="round-robin"}') == 6
    assert router.metric('warmroute_decisions_total{policy="cost"}') == 6
    _, _, found = router.admin.send("GET", "/admin/decisions?limit=1")
    assert (found["decisions"][0]["policy"], found["decisions"][0]["reason"]) == ("round-robin", "turn")


@pytest.mark.parametrize("policy", ["no-such", "least-loaded", "", "cost, random", "\xfcber"])
async def test_a_policy_that_is_unknown_or_not_allowed_is_a_clear_400(
    router_with: Callable[..., Any], policy: str
) -> None:
    """It says what would be right, and nothing is sent."""
    router = await router_with({"request_policies": ["round-robin", "random"]})
    status, replica, answer = ask(router, "words", x_warmroute_policy=policy)
    assert (status, replica, answer["error"]["code"]) == (400, "", "policy_refused")
    assert "round-robin, random" in answer["error"]["message"]
    assert answer["error"]["param"] == "x-warmroute-policy"


async def test_without_leave_the_header_says_nothing(router_with: Callable[..., Any]) -> None:
    """By default nobody may choose, and nobody is refused for asking."""
    router = await router_with({})
    assert ask(router, WARM, x_warmroute_policy="no-such")[0] == 200
    assert router.metric('warmroute_decisions_total{policy="cost"}') == 1
    assert router.admin.send("POST", "/admin/explain?policy=random", {"model": "tiny", "prompt": "x"})[2]["policy"] == (
        "random"
    )
    assert router.admin.send("POST", "/admin/explain?policy=odd", {"model": "tiny", "prompt": "x"})[0] == 400


@pytest.mark.parametrize(
    ("affinity", "of"),
    [
        ({"by": "header", "name": "X-Session"}, lambda number: {"x_session": f"s{number}"}),
        ({"by": "cookie", "name": "sid"}, lambda number: {"cookie": f'a=1; sid="s{number}"; b=2'}),
    ],
)
async def test_a_session_stays_by_header_or_cookie(
    router_with: Callable[..., Any], affinity: dict[str, Any], of: Callable[[int], dict[str, str]]
) -> None:
    """Under a policy that would send its requests anywhere."""
    router = await router_with({"policy": "random", "affinity": {**affinity, "mode": "hard"}})
    homes = {number: {ask(router, f"words {turn}", **of(number))[1] for turn in range(4)} for number in range(12)}
    assert all(len(home) == 1 for home in homes.values()), homes
    assert len({replica for home in homes.values() for replica in home}) == 3
    assert len({ask(router, f"words {turn}")[1] for turn in range(30)}) == 3


async def test_a_conversation_stays_by_its_beginning_or_by_its_key(router_with: Callable[..., Any]) -> None:
    """What OpenAI's clients send as `prompt_cache_key`, or else its system and first user message; the same body again
    too, which is not read a second time."""
    router = await router_with(
        {"policy": "random", "affinity": {"by": "conversation", "mode": "hard"}}, limits={"token_cache_bytes": 2**20}
    )

    def chat(first: str, *more: str, **fields: Any) -> str:
        messages = [
            {"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate((first, *more))
        ]
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, **fields}
        status, headers, answer = router.client.send("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        return headers["x-warmroute-replica"]

    for number in range(8):
        first = f"conversation {number}"
        assert len({chat(first), chat(first), chat(first, "yes", "go on"), chat(first, "no", "stop")}) == 1
    keyed = {chat(f"text {number}", prompt_cache_key="same") for number in range(8)}
    assert len(keyed) == 1
    assert len({chat(f"text {number}", prompt_cache_key=f"k{number}") for number in range(24)}) == 3


async def test_a_shadow_counts_what_it_would_have_done(
    router_with: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """By random choice warm prompts go cold; the shadow would have kept them together. Reloading starts its view anew,
    and no counter falls."""
    placement = {"policy": "random", "shadow": {"weights": {"price_base": 2}}}
    router = await router_with(placement)
    assert router.admin.send("GET", "/admin/shadow")[2]["decisions"] == 0
    for _ in range(40):
        ask(router, WARM)
    view = router.admin.send("GET", "/admin/shadow")[2]
    assert view["weights"]["price_base"] == 2
    assert view["decisions"] == 40
    assert 0 < view["differed"] == len(view["differences"]) < 40
    assert view["shadow_matched_tokens"] > view["matched_tokens"] > 0
    assert router.metric('warmroute_shadow_decisions_total{result="differed"}') == view["differed"]
    assert router.metric('warmroute_shadow_matched_tokens_total{rule="shadow"}') == view["shadow_matched_tokens"]
    assert WARM[:20] not in str(view)
    changed = {**router.least, "placement": {**placement, "shadow": {"weights": {"price_base": 3}}}}
    router.write(changed)

    def tried_anew() -> bool:
        found = router.admin.send("GET", "/admin/shadow")[2]
        return found["weights"]["price_base"] == 3 and found["decisions"] == 0

    await eventually(tried_anew, timeout_s=20)
    ask(router, WARM)
    found = router.metric('warmroute_shadow_decisions_total{result="same"}')
    assert found + router.metric('warmroute_shadow_decisions_total{result="differed"}') == 41


async def test_a_shadow_of_several_workers_is_one(router_with: Callable[..., Any]) -> None:
    """The supervisor adds up what all of them scored."""
    router = await router_with({"policy": "random", "shadow": {}}, workers=2)
    for _ in range(30):
        assert ask(router, WARM)[0] == 200
    view = router.admin.send("GET", "/admin/shadow")[2]
    assert view["decisions"] == 30
