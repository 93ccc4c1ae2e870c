"""Tenants' limits at the data plane: 429 with what clients need, tokens reserved and corrected."""

from __future__ import annotations

import json
from typing import Any

from tests.proxy.tenant_settings import FREE_KEY, key, tenants


async def test_requests_over_the_limit_are_429(engine: Any, harness: Any, wire: Any) -> None:
    """With Retry-After and OpenAI's headers, which good answers carry, too."""
    one = await engine()
    item = await harness(one, **tenants(requests_per_minute=2))
    client = await item.client()
    for left in ("1", "0"):
        answer = await client.ask(wire.post(wire.chat_body(), headers=[key()]))
        assert (answer.status, answer.one("x-ratelimit-remaining-requests")) == (200, left)
    answer = await client.ask(wire.post(wire.chat_body(), headers=[key()]))
    assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
    assert 1 <= int(answer.one("retry-after")) <= 30
    assert answer.one("x-ratelimit-limit-requests") == "2"
    assert len(one.asked) == 2
    assert (await item.ask(wire.post(wire.chat_body(), headers=[key(FREE_KEY)]))).all(
        "x-ratelimit-limit-requests"
    ) == []
    item.assert_accounted()


def left_of(answer: Any) -> int:
    """Tokens that a tenant has left."""
    return int(answer.one("x-ratelimit-remaining-tokens"))


def soon_after(tokens: int) -> range:
    """What may be left of a bucket that gets 1,000 tokens a minute: as much as was left, and what came in 6 s."""
    return range(tokens, tokens + 101)


async def test_tokens_are_reserved_and_corrected_by_the_engine_s_count(engine: Any, harness: Any, wire: Any) -> None:
    """The prompt's length and the answer's limit before, usage after."""
    usage = b'{"usage":{"prompt_tokens":11,"completion_tokens":4}}'

    async def answer(asked: Any, writer: Any) -> None:
        writer.write(wire.ok(usage))

    item = await harness(await engine(answer), **tenants(tokens_per_minute=1_000))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 500}
    first = await item.ask(wire.post(json.dumps(body).encode(), headers=[key()]))
    # The reader of these tests makes no answer's limit of it: 11 for the prompt, 256 assumed.
    assert left_of(first) in soon_after(733)
    second = await item.ask(wire.get("/v1/models", [key()]))
    assert left_of(second) in soon_after(985)


async def test_a_stream_without_usage_is_charged_by_its_events(engine: Any, harness: Any, wire: Any) -> None:
    """Not asking for usage is no way around the limit."""

    async def stream(asked: Any, writer: Any) -> None:
        events = b"".join(wire.chunk(b'data: {"choices":[]}\n\n') for _ in range(300))
        writer.write(wire.sse_head + events + b"0\r\n\r\n")

    item = await harness(await engine(stream), **tenants(tokens_per_minute=1_000))
    await item.ask(wire.post(wire.chat_body(stream=True), headers=[key()]))
    assert left_of(await item.ask(wire.get("/v1/models", [key()]))) in soon_after(1_000 - len("hello there") - 300)


async def test_a_request_that_no_engine_took_costs_no_tokens(engine: Any, harness: Any, wire: Any) -> None:
    """Nothing was computed for it."""
    one = await engine()
    one.refuse()
    item = await harness(one, **tenants(tokens_per_minute=1_000))
    assert (await item.ask(wire.post(wire.chat_body(), headers=[key()]))).code == "connect_failed"
    answer = await item.ask(wire.get("/v1/models", [key()]))
    assert answer.one("x-ratelimit-remaining-tokens") == "1000"


async def test_a_request_that_can_never_pass_is_not_repeated(engine: Any, harness: Any, wire: Any) -> None:
    """OpenAI's clients repeat a 429 unless they are told not to."""
    item = await harness(await engine(), **tenants(tokens_per_minute=10))
    answer = await item.ask(wire.post(wire.chat_body(), headers=[key()]))
    assert (answer.status, answer.one("x-should-retry"), answer.all("retry-after")) == (429, "false", [])
