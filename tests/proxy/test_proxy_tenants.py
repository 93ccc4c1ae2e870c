"""Tenants at the data plane, over real sockets: keys before the body, salts in the body, credentials, limits."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.proxy.tenant_settings import FREE_KEY, KEY, UPSTREAM, hashed, key, salt, tenants


async def test_a_request_with_a_known_key_is_served(engine: Any, harness: Any, wire: Any) -> None:
    """Each of a tenant's keys is good, in each header that clients use."""
    one = await engine()
    item = await harness(one, **tenants())
    for header in (
        key(),
        key("wr-acme-second"),
        f"x-api-key: {KEY}",
        f"api-key: {KEY}",
        f"AUTHORIZATION: bearer {KEY}",
    ):
        assert (await item.ask(wire.post(wire.chat_body(), headers=[header]))).status == 200
    assert {facts.tenant for facts, _ in item.notes.outcomes} == {"acme"}
    item.assert_accounted()


@pytest.mark.parametrize(
    "headers",
    [[], ["Authorization: Bearer wrong"], ["Authorization: Basic abc"], [key(), key(FREE_KEY)], ["x-api-key:"]],
)
async def test_a_request_without_a_known_key_is_refused(
    engine: Any, harness: Any, wire: Any, headers: list[str]
) -> None:
    """401 in OpenAI's shape, nothing forwarded, and the connection goes on."""
    one = await engine()
    item = await harness(one, **tenants())
    client = await item.client()
    answer = await client.ask(wire.post(wire.chat_body(), headers=headers))
    assert (answer.status, answer.code, answer.one("www-authenticate")) == (401, "invalid_api_key", "Bearer")
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
    assert not one.asked
    assert (await client.ask(wire.post(wire.chat_body(), headers=[key()]))).status == 200
    item.assert_accounted()


async def test_the_key_is_checked_before_the_body_is_read(engine: Any, harness: Any, wire: Any) -> None:
    """A stranger's 200 MiB are not waited for, and 100-continue is not sent for them."""
    item = await harness(await engine(), **tenants())
    client = await item.client()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 209715200\r\n\r\n" + b"x" * 1000)
    assert (await client.answer()).code == "invalid_api_key"
    client = await item.client()
    client.send(wire.post(b"{}", headers=["Expect: 100-continue"])[:-2])
    status, _ = await client.head(skip_interim=False)
    assert status == 401
    client = await item.client()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n")
    assert (await client.answer()).code == "invalid_api_key"
    assert item.plane.door.budget.used_bytes == 0


async def test_a_key_that_is_not_ascii_is_refused_or_known_as_any(engine: Any, harness: Any, wire: Any) -> None:
    """Bytes are compared; nothing fails on them."""
    odd = "schlüssel-ключ".encode()
    item = await harness(await engine(), **tenants({"name": "odd", "keys": [hashed(odd)]}))
    head = wire.post(wire.chat_body(), headers=["Authorization: Bearer HERE"])
    assert (await item.ask(head.replace(b"HERE", odd))).status == 200
    assert (await item.ask(head.replace(b"HERE", b"\xff\xfe\x80"))).code == "invalid_api_key"


async def test_health_and_preflight_need_no_key(engine: Any, harness: Any, wire: Any) -> None:
    """A browser asks before it may send the key; the question reaches an engine without a body (PRX-11)."""
    one = await engine()
    taken: list[bytes] = []

    def take_over(transport: asyncio.Transport, read: bytes) -> asyncio.Protocol:
        taken.append(read)
        transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        return asyncio.Protocol()

    item = await harness(one, admin_handoff=take_over, **tenants())
    asks = ["Origin: https://app.example", "Access-Control-Request-Method: POST"]
    assert (await item.ask(wire.get("/v1/chat/completions", asks, method="OPTIONS"))).status == 200
    assert one.asked[0].line.startswith("OPTIONS ")
    assert (await item.ask(wire.get("/v1/chat/completions", method="OPTIONS"))).status == 401
    with_body = wire.post(b"x", headers=asks).replace(b"POST /", b"OPTIONS /", 1)
    assert (await item.ask(with_body)).status == 401
    assert (await item.ask(wire.get("/healthz"))).status == 200
    assert len(taken) == 1


@pytest.mark.parametrize(("upstream", "sent"), [({}, []), (UPSTREAM, ["Bearer UK-222"])])
async def test_clients_keys_reach_no_engine(
    engine: Any, harness: Any, wire: Any, upstream: dict[str, str], sent: list[str]
) -> None:
    """The engine's own credential stands in their place, where there is one."""
    one = await engine()
    item = await harness(one, upstream=upstream, **tenants())
    for name in (KEY, FREE_KEY):
        headers = [key(name), f"x-api-key: {name}", f"Api-Key: {name}", "X-Other: stays"]
        assert (await item.ask(wire.post(wire.chat_body(), headers=headers))).status == 200
    for asked in one.asked:
        assert asked.all("authorization") == sent
        assert asked.all("x-api-key") == asked.all("api-key") == []
        assert asked.one("x-other") == "stays"


async def test_without_tenants_credentials_pass_unchanged(engine: Any, harness: Any, wire: Any) -> None:
    """Also where the router has a key of its own for engines."""
    one = await engine()
    item = await harness(one, upstream=UPSTREAM)
    await item.ask(wire.post(wire.chat_body(), headers=["Authorization: Bearer CK-111", "x-api-key: XK-555"]))
    assert (one.asked[0].one("authorization"), one.asked[0].one("x-api-key")) == ("Bearer CK-111", "XK-555")


@pytest.mark.parametrize("pad", [0, 20_000])
async def test_the_salt_is_the_only_change_of_the_body(engine: Any, harness: Any, wire: Any, pad: int) -> None:
    """Short bodies at once, long ones in a thread: the last key is the tenant's salt, all else as it was."""
    one = await engine()
    item = await harness(one, **tenants())
    body = wire.chat_body(pad=pad) + b" \r\n"
    answer = await item.ask(wire.post(body, headers=[key()]))
    assert answer.status == 200
    end = body.rindex(b"}")
    expected = body[:end] + b',"cache_salt":"%s"' % salt().encode() + body[end:]
    assert one.asked[0].body == expected
    assert one.asked[0].all("content-length") == [str(len(expected))]
    item.assert_accounted()


async def test_a_client_s_own_salt_is_combined(engine: Any, harness: Any, wire: Any) -> None:
    """The engine reads the last one."""
    one = await engine()
    item = await harness(one, **tenants())
    await item.ask(wire.post(b'{"model":"tiny","cache_salt":"mine","prompt":"x"}', headers=[key()]))
    assert json.loads(one.asked[0].body)["cache_salt"] == salt(own="mine")


async def test_a_tenant_that_is_not_isolated_keeps_its_bytes(engine: Any, harness: Any, wire: Any) -> None:
    """Whatever they are."""
    one = await engine()
    item = await harness(one, **tenants())
    for body in (wire.chat_body(), b"\xff\x00not json", b'{"cache_salt":"mine","cache_salt":"x"}'):
        await item.ask(wire.post(body, headers=[key(FREE_KEY), "content-encoding: br"]))
        assert one.asked[-1].body == body
        assert one.asked[-1].one("content-encoding") == "br"


@pytest.mark.parametrize("pad", [0, 20_000])
@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (lambda body: b'{"\\u0063ache_salt":"x",' + body[1:], 400, "ambiguous_body"),
        (lambda body: body.decode().encode("utf-16"), 400, "ambiguous_body"),
        (lambda body: b"\xef\xbb\xbf" + body, 400, "ambiguous_body"),
        (lambda body: body + b"{}", 400, "ambiguous_body"),
        (lambda body: b"[" + body + b"]", 400, "ambiguous_body"),
        (lambda body: b'{"cache_salt":"",' + body[1:], 400, "cache_salt_refused"),
        (lambda body: b'{"previous_response_id":"resp_1",' + body[1:], 403, "isolation_unsupported"),
    ],
)
async def test_a_body_that_can_t_be_isolated_is_refused(
    engine: Any, harness: Any, wire: Any, change: Any, status: int, code: str, pad: int
) -> None:
    """And nothing of it is forwarded."""
    one = await engine()
    item = await harness(one, **tenants())
    client = await item.client()
    answer = await client.ask(wire.post(change(wire.chat_body(pad=pad)), headers=[key()]))
    assert (answer.status, answer.code) == (status, code)
    assert not one.asked
    assert (await client.ask(wire.post(wire.chat_body(), headers=[key()]))).status == 200
    item.assert_accounted()


async def test_a_path_that_carries_no_salt_is_refused_to_isolated_tenants(engine: Any, harness: Any, wire: Any) -> None:
    """Others may use it; and what computes nothing is open to all."""
    one = await engine()
    item = await harness(one, **tenants())
    audio = wire.post(b"--x--", path="/v1/audio/transcriptions", headers=[key()])
    refused = await item.ask(audio)
    assert (refused.status, refused.code) == (403, "isolation_unsupported")
    assert not one.asked
    assert (await item.ask(audio.replace(KEY.encode(), FREE_KEY.encode()))).status == 200
    assert (await item.ask(wire.post(b'{"prompt":"x"}', path="/tokenize", headers=[key()]))).status == 200
    assert one.asked[-1].body == b'{"prompt":"x"}'
    assert (await item.ask(wire.get("/v1/models", [key()]))).status == 200
    assert (await item.ask(wire.get("/v1/chat/completions", [key()]))).status == 200


@pytest.mark.parametrize("pad", [0, 20_000])
async def test_gzip_is_decoded_and_forwarded_plain(engine: Any, harness: Any, wire: Any, pad: int) -> None:
    """A salt can't be written into a compressed body, and vLLM takes none."""
    one = await engine()
    item = await harness(one, **tenants())
    body = wire.chat_body(pad=pad)
    headers = [key(), "Content-Encoding: gzip"]
    assert (await item.ask(wire.post(gzip.compress(body), headers=headers))).status == 200
    assert one.asked[0].body == body[:-1] + b',"cache_salt":"%s"}' % salt().encode()
    assert one.asked[0].all("content-encoding") == []
    item.assert_accounted()


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("br", b"x", 415, "unsupported_encoding"),
        ("gzip, gzip", b"x", 415, "unsupported_encoding"),
        ("gzip", b"{}", 400, "malformed_request"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-1], 400, "malformed_request"),
        ("gzip", gzip.compress(bytes(2**24), mtime=0), 413, "body_too_large"),
    ],
)
async def test_a_coding_that_hides_the_body_is_refused(
    engine: Any, harness: Any, wire: Any, encoding: str, body: bytes, status: int, code: str
) -> None:
    """Unknown ones, broken ones, and bombs."""
    one = await engine()
    item = await harness(one, **tenants())
    answer = await item.ask(wire.post(body, headers=[key(), f"Content-Encoding: {encoding}"]))
    assert (answer.status, answer.code) == (status, code)
    assert not one.asked
    item.assert_accounted()


async def test_what_a_body_may_grow_to_is_counted_before_it_grows(engine: Any, harness: Any, wire: Any) -> None:
    """`limits.buffered_bytes` holds for decoded bodies, too."""
    item = await harness(await engine(), limits={"buffered_bytes": 2**20}, **tenants())
    good, large = gzip.compress(wire.chat_body()), gzip.compress(bytes(range(256)) * 100) * 40
    client = await item.client()
    for body, status in ((good, 200), (good, 200), (large, 503)):  # the second has a head that is known
        answer = await client.ask(wire.post(body, headers=[key(), "Content-Encoding: gzip"]))
        assert answer.status == status
    assert answer.code == "overloaded"
    item.assert_accounted()


async def test_a_salted_body_is_counted_as_long_as_it_is(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """Also when its head was known, and so the connection itself holds the body."""
    go = asyncio.Event()

    async def wait(asked: Any, writer: Any) -> None:
        await go.wait()
        writer.write(wire.ok())

    one = await engine(wait)
    item = await harness(one, **tenants())
    client, body = await item.client(), wire.chat_body()
    for number in (1, 2):
        go.clear()
        client.send(wire.post(body, headers=[key()]))
        await eventually(lambda number=number: len(one.asked) == number)
        assert item.plane.door.budget.used_bytes == len(one.asked[-1].body) > len(body)
        go.set()
        assert (await client.answer()).status == 200
    item.assert_accounted()


async def test_leaving_while_the_salt_is_set_is_noticed(engine: Any, harness: Any, wire: Any, eventually: Any) -> None:
    """Nothing is forwarded for a client that is gone."""
    one = await engine()
    item = await harness(one, **tenants())
    started, go_on = asyncio.Event(), asyncio.Event()
    real = item.plane.tenancy._in_thread

    async def slowly(work: Any) -> bytes:
        started.set()
        await go_on.wait()
        return bytes(await real(work))

    item.plane.tenancy._in_thread = lambda work: asyncio.ensure_future(slowly(work))
    client = await item.client()
    client.send(wire.post(wire.chat_body(pad=20_000), headers=[key()]))
    await started.wait()
    client.reset()
    await eventually(lambda: item.notes.outcomes)
    assert item.notes.last.aborted
    go_on.set()
    await eventually(lambda: not item.plane.door.connections)
    assert not one.asked
    item.assert_accounted()


async def test_headers_tell_what_is_cached_only_where_configured(engine: Any, harness: Any, wire: Any) -> None:
    """They would tell what others have cached."""
    teller = {"name": "teller", "keys": [hashed("wr-teller")], "tells_cached": True}
    item = await harness(await engine(), **tenants(teller))
    for name, told in ((KEY, 0), (FREE_KEY, 0), ("wr-teller", 1)):
        answer = await item.ask(wire.post(wire.chat_body(), headers=[key(name), "x-warmroute-explain: 1"]))
        assert len(answer.all("x-warmroute-matched-tokens")) == told
        assert len(answer.all("x-warmroute-explain")) == told
        assert answer.one("x-warmroute-replica") == "r0"


async def test_tenants_are_replaced_while_running(engine: Any, harness: Any, wire: Any) -> None:
    """A key that is gone opens nothing more; what runs goes on, and what was used stays used."""
    item = await harness(await engine(), **tenants(requests_per_minute=2))
    client = await item.client()
    assert (await client.ask(wire.post(wire.chat_body(), headers=[key()]))).status == 200
    settings = {"models": [{"name": "tiny"}], **tenants(requests_per_minute=2)}
    settings["tenants"][0]["keys"] = [hashed("wr-new")]
    from router.config import RouterConfig

    item.plane.configure(RouterConfig.model_validate(settings))
    assert (await client.ask(wire.post(wire.chat_body(), headers=[key()]))).status == 401
    answer = await client.ask(wire.post(wire.chat_body(), headers=[key("wr-new")]))
    assert (answer.status, answer.one("x-ratelimit-remaining-requests")) == (200, "0")
