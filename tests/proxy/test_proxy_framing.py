"""Ambiguous framing is refused: 400 in JSON, the connection closed, nothing forwarded; and whatever bytes come."""

from __future__ import annotations

import asyncio
import random

import pytest

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n"
BODY = b'{"model":"tiny"}'
SECOND = b"GET /version HTTP/1.1\r\nHost: r\r\n\r\n"

AMBIGUOUS = {
    "length and coding": HEAD + b"Content-Length: 16\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY,
    "coding and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 16\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 16\r\nContent-Length: 15\r\n\r\n" + BODY,
    "one length twice": HEAD + b"Content-Length: 16\r\nContent-Length: 16\r\n\r\n" + BODY,
    "list of lengths": HEAD + b"Content-Length: 16, 16\r\n\r\n" + BODY,
    "signed length": HEAD + b"Content-Length: +16\r\n\r\n" + BODY,
    "negative length": HEAD + b"Content-Length: -1\r\n\r\n" + BODY,
    "hexadecimal length": HEAD + b"Content-Length: 0x10\r\n\r\n" + BODY,
    "empty length": HEAD + b"Content-Length:\r\n\r\n" + BODY,
    "huge length": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
    "bare LF after a header": HEAD + b"X: a\nContent-Length: 16\r\n\r\n" + BODY,
    "bare LF throughout": b"POST /v1/chat/completions HTTP/1.1\nHost: r\nContent-Length: 16\n\n" + BODY,
    "bare CR in a value": HEAD + b"X: a\rContent-Length: 16\r\n\r\n" + BODY,
    "folded header": HEAD + b"X: a\r\n b\r\nContent-Length: 16\r\n\r\n" + BODY,
    "space before colon": HEAD + b"Content-Length : 16\r\n\r\n" + BODY,
    "space in a name": HEAD + b"X Y: 1\r\nContent-Length: 16\r\n\r\n" + BODY,
    "no colon": HEAD + b"Nonsense\r\n\r\n",
    "empty name": HEAD + b": x\r\n\r\n",
    "NUL in a value": HEAD + b"X: a\x00b\r\n\r\n",
    "escape in a value": HEAD + b"X: a\x1b[31m\r\n\r\n",
    "unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding before chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding after chunked": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "tab before coding": HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "coding in HTTP/1.0": b"POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunk too long": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "chunk with bare LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 16\r\n\r\n" + BODY,
    "two hosts": HEAD + b"Host: other\r\nContent-Length: 16\r\n\r\n" + BODY,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0 in words": b"GET /version HTTP/2.0\r\nHost: r\r\n\r\n",
    "HTTP/0.9": b"GET /version\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no method": b"\x00\x01\x02\r\n\r\n",
    "space in target": b"GET /version x HTTP/1.1\r\nHost: r\r\n\r\n",
    "control in target": b"GET /version\x01 HTTP/1.1\r\nHost: r\r\n\r\n",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
@pytest.mark.parametrize("bytewise", [False, True])
async def test_ambiguous_framing_is_refused(harness, engine, name, bytewise) -> None:
    """400 malformed_request, then close; neither it nor what follows in the same bytes is forwarded."""
    one = await engine()
    item = await harness(one)
    client = await item.client()
    data = AMBIGUOUS[name] + SECOND
    step = 1 if bytewise else len(data)
    for at in range(0, len(data), step):
        client.send(data[at : at + step])
        if bytewise:
            await asyncio.sleep(0)
    answer = await client.answer()
    assert (answer.status, answer.code) == (400, "malformed_request")
    assert answer.one("content-type") == "application/json"
    assert answer.one("x-request-id")
    assert answer.one("connection") == "close"
    assert await client.closed()
    assert one.connections == 0
    item.assert_accounted()


async def test_empty_lines_before_a_request_are_ignored(harness, engine, wire) -> None:
    """RFC 9112, 2.2: CRLF before a request line is no request, whole or in pieces."""
    item = await harness(await engine())
    client = await item.client()
    for blank in (b"\r\n", b"\r\n\r\n", b"\r\n" * 5):
        client.send(blank)
        await client.writer.drain()
        assert (await client.ask(b"\r\n" + wire.post(wire.chat_body()))).status == 200


async def test_injection_by_encoded_line_ends_stays_in_the_query(harness, engine, wire) -> None:
    """%0d%0a in a query is forwarded as those characters: no header comes of it."""
    one = await engine()
    item = await harness(one)
    await item.ask(wire.post(wire.chat_body(), path="/v1/chat/completions?x=%0d%0aX-Evil:%201"))
    assert one.asked[0].line == "POST /v1/chat/completions?x=%0d%0aX-Evil:%201 HTTP/1.1"
    assert one.asked[0].all("x-evil") == []


SEEDS = [
    HEAD + b"Content-Length: 16\r\n\r\n" + BODY,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n8\r\n" + BODY[:8] + b"\r\n8\r\n" + BODY[8:] + b"\r\n0\r\n\r\n",
    b"GET /v1/models?x=1 HTTP/1.1\r\nHost: r\r\nConnection: keep-alive\r\n\r\n",
    HEAD + b"Expect: 100-continue\r\nContent-Length: 16\r\n\r\n" + BODY,
]
SPLICES = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"\xff",
    b"%",
    b"Content-Length: 3\r\n",
]


def mutated(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choices(SEEDS, k=chance.randint(1, 3))))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at:at] = chance.choice(SPLICES)
        elif kind == 2:
            del data[at : at + chance.randint(1, 5)]
        else:
            del data[at:]
        data = data or bytearray(b"x")
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
async def test_no_bytes_make_it_fail_or_hang(harness, engine, caplog, seed) -> None:
    """Mutated requests, cut anywhere: every connection ends, nothing is logged as an error, and engines only ever get
    whole requests whose bodies are the client's (the stub asserts the framing)."""
    bodies: list[bytes] = []

    async def behave(asked, writer) -> None:
        bodies.append(asked.body)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    item = await harness(await engine(behave), timeouts={"request_s": 0.2, "keepalive_s": 0.2})
    chance = random.Random(seed)

    async def one(data: bytes, cuts: list[int]) -> None:
        client = await item.client()
        at = 0
        try:
            for cut in [*cuts, len(data)]:
                client.send(data[at:cut])
                at = cut
                await client.writer.drain()
                await asyncio.sleep(0)
            client.half_close()
            await asyncio.wait_for(client.reader.read(), 10)
        except (ConnectionError, BrokenPipeError):
            pass
        client.close()

    cases = []
    for _ in range(150):
        data = mutated(chance)
        cuts = sorted(chance.sample(range(len(data)), min(len(data), chance.randint(0, 6))))
        cases.append(one(data, cuts))
    await asyncio.gather(*cases)
    assert (await item.ask(SEEDS[0])).status == 200
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
    assert all(len(body) <= len(SEEDS[0]) * 4 for body in bodies)
    item.assert_accounted()
