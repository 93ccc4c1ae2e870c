"""No bytes make an engine see a request that a strict reader of the same bytes does not see."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n"
BODY = b'{"model":"tiny"}'
INNER = b"GET /version HTTP/1.1\r\nHost: r\r\nX-Smuggled: 1\r\n\r\n"
SEEDS = [
    HEAD + b"Content-Length: 16\r\n\r\n" + BODY,
    HEAD + b"Content-Length: 7\r\n\r\n" + BODY[:7],
    HEAD + b"content-length: 2\r\nX: y\r\n\r\n{}",
    HEAD + b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER,
    HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n8\r\n"
    + BODY[:8]
    + b"\r\n8;a=b\r\n"
    + BODY[8:]
    + b"\r\n0\r\nT: 1\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(INNER) + INNER + b"\r\n0\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost: r\r\n\r\n",
    b"GET /version?a=%0d%0a HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n",
    b"GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]
SPLICES = [
    b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"+", b"-", b"0", b"_", b"\x0b", b"\r\n\r\n",
    b"0\r\n\r\n", b"\xff", b"%", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b" \r\n", b"\r\n ", b"\n\n", b"HTTP/1.1", b"10\r\n", INNER,
]  # fmt: skip
_LINE = re.compile(rb"([A-Z]+) +([!-~]+) +HTTP/1\.([01])")  # RFC 9112, 3: words may be parted by more than one space
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n\0]*)?\r\n")


def strictly(data: bytes) -> list[tuple[bytes, bytes]]:
    """Methods and bodies of the requests that RFC 9112 finds, up to the first thing that is not beyond doubt."""
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while True:
        while data[at : at + 1] in (b"\r", b"\n"):
            at += 1  # empty lines before a request say nothing, however they end
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            return found
        first, *lines = data[at:end].split(b"\r\n")
        request, fields = _LINE.fullmatch(first), [_FIELD.fullmatch(line) for line in lines]
        if request is None or not all(fields):
            return found
        values: dict[bytes, list[bytes]] = {}
        for field in fields:
            assert field is not None
            values.setdefault(field[1].lower(), []).append(field[2])
        lengths, codings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
        if len(lengths) > 1 or (lengths and not re.fullmatch(rb"[0-9]+", lengths[0])) or (lengths and codings):
            return found
        if codings and ([coding.lower() for coding in codings] != [b"chunked"] or request[3] == b"0"):
            return found
        at = end + 4
        if codings:
            body, at = _unchunked(data, at)
            if at < 0:
                return found
        else:
            length = int(lengths[0]) if lengths else 0
            body, at = data[at : at + length], at + length
            if at > len(data):
                return found
        found.append((request[1], body))


def _unchunked(data: bytes, at: int) -> tuple[bytes, int]:
    """The body of chunks and the place after it; -1 where they are broken or not complete."""
    body = b""
    while (size := _SIZE.match(data, at)) is not None:
        at, length = size.end(), int(size[1], 16)
        if not length:
            end = at if data.startswith(b"\r\n", at) else data.find(b"\r\n\r\n", at) + 2
            trailers = data[at:end].split(b"\r\n")[:-1]
            good = end >= at and all(_FIELD.fullmatch(trailer) for trailer in trailers)
            return (body, end + 2) if good else (b"", -1)
        body += data[at : at + length]
        at += length
        if data[at : at + 2] != b"\r\n":
            return b"", -1
        at += 2
    return b"", -1


def mutated(chance: random.Random) -> bytes:
    """Requests in a row, often the same head again, with a few bytes changed, put in, taken out or moved."""
    seed = chance.choice(SEEDS)
    data = bytearray(b"".join(chance.choice([seed, chance.choice(SEEDS)]) for _ in range(chance.randint(1, 4))))
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(data))
        kind = chance.randrange(5)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at:at] = chance.choice(SPLICES)
        elif kind == 2:
            del data[at : at + chance.randint(1, 5)]
        elif kind == 3:
            other = chance.randrange(len(data))
            data[at:at] = data[other : other + chance.randint(1, 30)]
        else:
            digits = [place for place, byte in enumerate(data) if 0x30 <= byte <= 0x39]
            data[chance.choice(digits or [at])] = chance.choice(b"0123456789abcdefx +-")
        data = data or bytearray(b"x")
    return bytes(data)


def test_the_strict_reader_reads_what_is_plain() -> None:
    """Or the test below would prove nothing."""
    assert strictly(b"".join(SEEDS)) == [
        (b"POST", BODY), (b"POST", BODY[:7]), (b"POST", b"{}"), (b"POST", INNER), (b"POST", BODY), (b"POST", INNER),
        (b"GET", b""), (b"GET", b""), (b"GET", b""),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
async def test_engines_see_no_request_that_is_not_there(harness: Any, engine: Any, eventually: Any, seed: int) -> None:
    """Each request that reaches an engine is one that a strict reader finds in the client's bytes, in this order."""

    async def behave(asked: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    one = await engine(behave)
    item = await harness(one, timeouts={"request_s": 0.2, "keepalive_s": 0.2})
    chance = random.Random(seed)
    forwarded = 0
    for _ in range(200):
        data = mutated(chance)
        one.asked.clear()
        client = await item.client()
        try:
            cuts = sorted(chance.sample(range(len(data)), min(len(data), chance.choice((0, 0, 1, 3)))))
            for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                client.send(data[begin:end])
                await asyncio.sleep(0)
            client.half_close()
            await asyncio.wait_for(client.reader.read(), 10)
        except (ConnectionError, RuntimeError):
            pass  # RuntimeError is uvloop's word for a connection that closed
        client.close()
        # A client that was reset may leave a request on its way.
        await eventually(lambda: not item.plane.door.connections and not item.plane.forwarder.running)
        await eventually(lambda: one.open == item.plane.pool.open_count)
        expected = iter(strictly(data))
        for asked in one.asked:
            seen = (asked.line.split(" ")[0].encode(), asked.body)
            assert any(seen == each for each in expected), (data, seen)
        forwarded += len(one.asked)
    assert forwarded > 80
    item.clients.clear()
