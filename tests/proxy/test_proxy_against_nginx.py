"""The engine and the client see through the router what they see through nginx, but for what a proxy must change."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt-get install nginx-light)")

SHAPES = 500
Got = tuple[int, list[tuple[str, str]], bytes]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/transcriptions", "/tokenize")
ALLOWED = [*PATHS, "/v1/models"]
# What each proxy sets for itself: identity, framing and connection; and what nginx is known to do differently.
OWN = {"host", "connection", "x-request-id", "content-length", "transfer-encoding", "date", "server"}
OWN |= {"x-warmroute-replica", "x-warmroute-matched-tokens", "keep-alive"}
CONF = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; client_max_body_size 64m; large_client_header_buffers 8 64k;
  proxy_buffer_size 128k; proxy_buffers 8 128k; proxy_busy_buffers_size 256k;
  underscores_in_headers on; ignore_invalid_headers off;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
      proxy_pass_header Server; proxy_pass_header Date; proxy_pass_request_headers on;
    }}
  }}
}}
"""
NAMES = [
    "X-Trace",
    "x-trace",
    "Accept",
    "User-Agent",
    "Cookie",
    "X_Under",
    "X-Empty",
    "Content-Language",
]
VALUES = [
    "a",
    "",
    "a, b",
    'q="1;2"',
    "x" * 3_000,
    "tab\tinside",
    "ünï".encode().decode("latin-1"),
    "%41%00",
    "Bearer k-1",
]
ANSWER_NAMES = [
    "Set-Cookie",
    "set-cookie",
    "X-Answer",
    "Cache-Control",
    "ETag",
    "Vary",
    "X-A",
    "Openai-Version",
    "WWW-Authenticate",
]
TYPES = [
    "application/json",
    "text/event-stream; charset=utf-8",
    "audio/mpeg",
    "multipart/form-data; boundary=zz",
    "text/plain",
]


class Shape:
    """One generated request, and how the engine answers it."""

    def __init__(self, rng: random.Random) -> None:
        self.method = rng.choice(["POST"] * 6 + ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
        self.target = rng.choice(PATHS) + rng.choice(["", "?a=1", "?a=%20b&c=%2F", "?", "?x=1?y=2&&z"])
        self.headers = [(rng.choice(NAMES), rng.choice(VALUES).strip()) for _ in range(rng.randrange(6))]
        self.headers += rng.choice(
            [[], [("Content-Encoding", "gzip")], [("Expect", "100-continue")], [("Accept-Encoding", "br")]]
        )
        self.headers += rng.choice([[], [("Authorization", "Bearer k-1")]])  # nginx refuses two of them
        size = rng.choice([0, 1, 17, 1_000, 40_000, 300_000]) if self.method in ("POST", "PUT") else 0
        self.body = rng.randbytes(size)
        self.body_is_chunked = bool(size) and rng.random() < 0.4
        self.cuts = sorted(rng.randrange(size + 1) for _ in range(rng.randrange(6)))
        self.type = rng.choice(TYPES)
        self.status = rng.choice([200] * 5 + [201, 204, 400, 404, 418, 422, 429, 500, 503])
        self.reason = rng.choice(["OK", "Fine by me", "I'm a teapot"])
        self.answer_headers = [
            (rng.choice(ANSWER_NAMES), rng.choice(VALUES[:7]).strip()) for _ in range(rng.randrange(6))
        ]
        self.answer_headers.append(("Content-Type", rng.choice(TYPES)))
        size = rng.choice([0, 2, 500, 20_000, 200_000])
        self.answer = rng.randbytes(size)
        self.framing = rng.choice(["length", "length", "chunked", "close"])
        self.answer_cuts = sorted(rng.randrange(size + 1) for _ in range(rng.randrange(8)))

    @property
    def request(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: fleet.example"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.body_is_chunked:
            lines += ["Transfer-Encoding: chunked", f"Content-Type: {self.type}"]
        elif self.body:
            lines += [f"Content-Length: {len(self.body)}", f"Content-Type: {self.type}"]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head + (chunked(self.body, self.cuts) if self.body_is_chunked else self.body)

    def answer_pieces(self) -> list[bytes]:
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        lines += [f"{name}: {value}" for name, value in self.answer_headers]
        bodiless = self.method == "HEAD" or self.status == 204
        if self.framing == "length" and self.status != 204:
            lines.append(f"Content-Length: {len(self.answer)}")
        elif self.framing == "chunked" and not bodiless:
            lines.append("Transfer-Encoding: chunked")
        elif self.status != 204:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if bodiless:
            return [head]
        body = chunked(self.answer, self.answer_cuts) if self.framing == "chunked" else self.answer
        cuts = [0, *self.answer_cuts, len(body)]
        return [head, *(body[start:end] for start, end in itertools.pairwise(cuts))]

    @property
    def closes(self) -> bool:
        return self.framing == "close" and self.status != 204


def chunked(body: bytes, cuts: list[int]) -> bytes:
    places = [0, *cuts, len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(places)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"


def seen(lines: list[str], dropped: set[str] = OWN) -> list[tuple[str, str]]:
    """Header lines as pairs, less those that a proxy sets for itself."""
    pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return [pair for pair in pairs if pair[0].lower() not in dropped]


async def read_message(reader: asyncio.StreamReader, *, bodiless: bool) -> tuple[str, list[str], bytes]:
    """Read one message: first line, header lines, the body without its transfer coding."""
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if bodiless:
        return first, lines, b""
    if "transfer-encoding" in fields:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return first, lines, body
    if "content-length" in fields:
        return first, lines, await reader.readexactly(int(fields["content-length"]))
    is_answer = first.startswith("HTTP/") and not first.startswith("HTTP/1.1 100")
    return first, lines, await reader.read() if is_answer else b""


def in_nginx_order(answer: Got) -> Got:
    """nginx writes an answer's Content-Type anew, before all others; their order is kept."""
    status, headers, body = answer
    return status, sorted(headers, key=lambda pair: pair[0].lower() != "content-type"), body


class Scripted:
    """An engine that notes what it gets and answers as the shape at hand says."""

    def __init__(self) -> None:
        self.shape = Shape(random.Random(0))
        self.got: list[tuple[str, list[tuple[str, str]], bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, lines, body = await read_message(reader, bodiless=False)
                self.got.append((first, seen(lines), body))
                for piece in self.shape.answer_pieces():
                    writer.write(piece)
                    await writer.drain()
                if self.shape.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def scripted() -> AsyncIterator[tuple[Scripted, int]]:
    """The engine, and its port."""
    one = Scripted()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, limit=2**24)
    yield one, server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def nginx(scripted: tuple[Scripted, int], tmp_path: Path) -> AsyncIterator[int]:
    """nginx before the engine, and its port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    file = tmp_path / "nginx.conf"
    file.write_text(CONF.format(folder=tmp_path, engine=scripted[1], port=port))
    process = await asyncio.create_subprocess_exec(str(NGINX), "-c", str(file), "-e", str(tmp_path / "error.log"))
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except ConnectionError:
            await asyncio.sleep(0.05)
    yield port
    process.terminate()
    await process.wait()


async def through(port: int, shape: Shape) -> list[Got]:
    """What a client gets that asks twice on one connection: status, headers, body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    bodiless = shape.method == "HEAD" or shape.status == 204
    answers = []
    try:
        for _ in range(2):
            writer.write(shape.request)
            while True:
                first, lines, body = await asyncio.wait_for(read_message(reader, bodiless=bodiless), 20)
                status = int(first.split(" ")[1])
                if status != 100:
                    break
            answers.append((status, seen(lines), body))
        return answers
    finally:
        writer.close()


async def test_engine_and_client_see_what_they_see_through_nginx(harness, scripted, nginx) -> None:
    """500 generated shapes, each asked twice on a connection: methods, queries, repeated and odd headers, chunked and
    plain bodies both ways, bodies ended by the connection, statuses with and without a body."""
    engine, port = scripted
    item = await harness(paths=ALLOWED)
    item.announce(type("At", (), {"url": f"http://127.0.0.1:{port}"})(), "r0")
    rng = random.Random(20_260_801)
    for number in range(SHAPES):
        engine.shape = shape = Shape(rng)
        engine.got.clear()
        theirs, ours = await through(nginx, shape), await through(item.port, shape)
        told = f"shape {number}: {shape.request[:600]!r} answered {shape.answer_pieces()[0]!r}"
        assert len(engine.got) == 4, (told, theirs[0], ours[0])
        assert engine.got == engine.got[:1] * 4, told
        assert list(map(in_nginx_order, ours)) == list(map(in_nginx_order, theirs)), told
    item.assert_accounted()
