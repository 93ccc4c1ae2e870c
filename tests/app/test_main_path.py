"""The whole loop over real processes: the engine caches, its agent publishes, the router sends what follows there."""

from __future__ import annotations

import json
from typing import Any

from router.tools.local_fleet import LocalFleet

TEXT = (
    "Prefix caching keeps the blocks of earlier prompts, so that a prompt which begins alike is computed faster. " * 4
)


async def test_a_conversation_stays_where_its_prefix_is_and_the_prediction_is_delivered(
    client: Any, wait_for_blocks: Any
) -> None:
    """Three turns: each goes to the replica of the first, and the engine reads exactly what the router predicted."""
    before = wait_for_blocks.total()
    first, predicted, delivered, answer = client.chat("turn one: " + TEXT)
    assert (predicted, delivered) == (0, 0)
    await wait_for_blocks(before + answer["usage"]["prompt_tokens"] // 16)
    reply = answer["choices"][0]["message"]["content"]
    before = wait_for_blocks.total()
    second, predicted, delivered, answer = client.chat("turn one: " + TEXT, reply, "turn two: " + TEXT)
    assert second == first
    assert predicted == delivered > 16 * 5
    await wait_for_blocks(before + answer["usage"]["prompt_tokens"] // 16 - delivered // 16)
    third, predicted, delivered, _ = client.chat("turn one: " + TEXT, reply, "turn two: " + TEXT)
    assert third == first
    assert predicted == delivered == (answer["usage"]["prompt_tokens"] - 1) // 16 * 16


async def test_another_salt_shares_nothing(client: Any, wait_for_blocks: Any) -> None:
    """The salt is in block 0, so nothing of a prompt with another one matches, and its own does."""
    before = wait_for_blocks.total()
    *_, answer = client.chat("salted: " + TEXT, cache_salt="tenant-a")
    await wait_for_blocks(before + answer["usage"]["prompt_tokens"] // 16)
    _, predicted, delivered, _ = client.chat("salted: " + TEXT, cache_salt="tenant-a")
    assert predicted == delivered > 0
    _, predicted, delivered, _ = client.chat("salted: " + TEXT, cache_salt="tenant-b")
    assert (predicted, delivered) == (0, 0)


async def test_a_stream_arrives_whole_with_its_usage(client: Any) -> None:
    """Server-sent events pass through, the usage chunk and the end mark with them."""
    body = {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 12,
        "messages": [{"role": "user", "content": TEXT}],
    }
    status, headers, data = client.send("POST", "/v1/chat/completions", body)
    events = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    assert (status, events[-1]) == (200, "[DONE]")
    assert headers["content-type"].startswith("text/event-stream")
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 12


async def test_a_decision_says_why_and_what_came_of_it(client: Any) -> None:
    """In the answer's header when asked for, and afterwards by request id with the outcome."""
    body = {"model": "tiny", "prompt": list(range(100, 180)), "max_tokens": 4}
    status, headers, _ = client.send("POST", "/v1/completions", body, x_warmroute_explain="1", x_request_id="why-1")
    brief = json.loads(headers["x-warmroute-explain"])
    assert (status, headers["x-request-id"]) == (200, "why-1")
    assert {item["replica"] for item in brief["candidates"]} == {"r0", "r1"}
    _, _, whole = client.send("GET", "/admin/decisions/why-1")
    assert whole["winner"] == f"{headers['x-warmroute-replica']}/0"
    assert whole["outcome"]["prompt_tokens"] == 80
    assert all(set(item["terms"]) == {"queue", "recompute", "running", "held"} for item in whole["candidates"])


async def test_explaining_a_body_sends_nothing(client: Any) -> None:
    """The counters of requests do not move."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": TEXT}]}

    def ended() -> list[str]:
        return [
            line
            for line in client.send("GET", "/metrics")[2].decode().split("\n")
            if line.startswith("warmroute_requests_total")
        ]

    before = ended()
    status, _, decision = client.send("POST", "/admin/explain", body)
    assert (status, decision["model"], decision["outcome"]) == (200, "tiny", None)
    assert ended() == before


async def test_what_the_engine_owns_it_answers(client: Any) -> None:
    """Malformed bodies, prompts over the model's length and wrong types get the engine's own error."""
    long = {"model": "tiny", "prompt": [7] * 40_000, "max_tokens": 4}
    for body in (b'{"model": ', long, {"model": "tiny", "messages": "hello"}):
        path = "/v1/completions" if body is long else "/v1/chat/completions"
        status, headers, answer = client.send("POST", path, body)
        assert status == 400
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert headers["x-warmroute-replica"] in ("r0", "r1")


async def test_what_the_router_owns_it_answers_in_the_same_shape(client: Any) -> None:
    """An unknown model and a path outside the allow-list."""
    status, headers, answer = client.send("POST", "/v1/completions", {"model": "gpt-9", "prompt": "x"})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
    assert headers["x-request-id"]
    for path in ("/reset_prefix_cache", "/v1/load_lora_adapter", "/sleep", "/v1/../reset_prefix_cache"):
        status, _, answer = client.send("POST", path, {})
        assert (status, answer["error"]["code"]) == (404, "path_not_found")


async def test_a_reset_cache_is_forgotten(
    client: Any, fleet: LocalFleet, wait_for_blocks: Any, eventually: Any
) -> None:
    """After the engines dropped their caches the router predicts nothing of them (EVT-03)."""
    before = wait_for_blocks.total()
    *_, answer = client.chat("to be forgotten: " + TEXT)
    await wait_for_blocks(before + answer["usage"]["prompt_tokens"] // 16)
    for engine in fleet.engines:
        type(client)(engine.http).send("POST", "/reset_prefix_cache")
    # The engine says so with its next step only.
    for engine in fleet.engines:
        type(client)(engine.http).send(
            "POST", "/v1/completions", {"model": "tiny", "prompt": [1] * 20, "max_tokens": 1}
        )
    await eventually(lambda: wait_for_blocks.total() <= 4, what="the index forgot")
    _, predicted, delivered, _ = client.chat("to be forgotten: " + TEXT)
    assert (predicted, delivered) == (0, 0)


async def test_the_sums_of_the_ledger_are_the_engines_own(client: Any, fleet: LocalFleet) -> None:
    """Delivered tokens are what the engines counted as hits; nothing is unobserved when usage is reported."""

    def stage(name: str) -> float:
        text = client.send("GET", "/metrics")[2].decode()
        return float(text.split(f'warmroute_reuse_tokens_total{{stage="{name}"}} ')[1].split("\n")[0])

    def hits() -> float:
        total = 0.0
        for engine in fleet.engines:
            text = type(client)(engine.http).send("GET", "/metrics")[2].decode()
            total += sum(
                float(line.split()[-1]) for line in text.split("\n") if line.startswith("vllm:prefix_cache_hits_total")
            )
        return total

    delivered, hit = stage("delivered"), hits()
    for number in range(6):
        client.chat(f"ledger {number % 2}: " + TEXT)
    assert stage("delivered") - delivered == hits() - hit > 0
    assert stage("unobserved") == 0


async def test_what_is_not_understood_is_forwarded_and_counted_by_its_reason(client: Any) -> None:
    """Shapes and APIs whose prompt can't be known reach an engine, whatever it says of them (case HASH-12)."""
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "prompt_embeds": ("/v1/completions", {"prompt_embeds": "AAAA"}),
        "empty": ("/v1/completions", {"prompt": ""}),
        "unsupported": ("/v1/completions", {"prompt": TEXT, "suffix": "end"}),
        "engine_state": ("/v1/responses", {"input": TEXT, "previous_response_id": "resp_1"}),
        "scoring": ("/v1/score", {"text_1": TEXT, "text_2": TEXT}),
        "media": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [sound]}]}),
        "template_error": ("/v1/chat/completions", {"messages": []}),
    }

    def counted() -> dict[str, float]:
        text = client.send("GET", "/metrics")[2].decode()
        lines = [line for line in text.split("\n") if line.startswith("warmroute_not_understood_total{")]
        return {line.split('reason="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}

    for reason, (path, body) in requests.items():
        before = counted()
        _, headers, _ = client.send("POST", path, {"model": "tiny", "max_tokens": 1, **body})
        assert headers["x-warmroute-replica"] in ("r0", "r1"), reason
        after = counted()
        assert {name for name in after if after[name] != before.get(name, 0.0)} == {reason}
