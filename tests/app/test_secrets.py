"""No key, password or prompt is in anything that the router emits, whatever fails (AUT-02): real processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.tools.processes import wait_for

CLIENT_KEY, WRONG_KEY, UPSTREAM, REDIS_PASSWORD = "CK-111-client", "CK-112-wrong", "UK-222-engine", "RP-333-redis"
PROMPT, OTHER_KEY, COOKIE, QUERY_KEY = "PT-444-prompt", "XK-555-other", "CO-666-cookie", "QK-777-query"
SALT, ADMIN_TOKEN, REGISTRATION = "SA-888-salt-of-enough-length", "AT-999-token", "RS-000-registration"
MARKERS = (
    CLIENT_KEY, WRONG_KEY, UPSTREAM, REDIS_PASSWORD, PROMPT, OTHER_KEY, COOKIE, QUERY_KEY, SALT, ADMIN_TOKEN,
    REGISTRATION, hashlib.sha256(CLIENT_KEY.encode()).hexdigest(),
)  # fmt: skip


class Server:
    """A TCP server that answers each piece that it reads by `answer`."""

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self.answer = answer
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self.listening.accept()[:1], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65_536):
                answer = self.answer(data)
                if answer is None:
                    return
                connection.sendall(answer)

    def close(self) -> None:
        self.listening.close()


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[bytes], bytes | None]], Server]]:
    made: list[Server] = []

    def make(answer: Callable[[bytes], bytes | None]) -> Server:
        made.append(Server(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


def http(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def engine(mode: list[str]) -> Callable[[bytes], bytes | None]:
    """An engine that fails as it is told, and echoes what it was sent."""

    def answer(data: bytes) -> bytes | None:
        if data.startswith(b"GET /v1/models"):
            return http(b"200 OK", b'{"data":[{"id":"tiny","root":"tiny","max_model_len":4096}]}')
        if data.startswith(b"GET"):
            return http(b"200 OK", b"")
        if mode[0] == "echo":
            return http(b"500 Internal Server Error", json.dumps({"error": data.decode("latin-1")}).encode())
        if mode[0] == "nonsense":
            return b"HTTP/1.1 what " + data
        if mode[0] == "close":
            return None
        return http(b"200 OK", b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}')

    return answer


def send(url: str, head: str, body: bytes = b"") -> bytes:
    """A raw request; all that comes back."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65_536):
                answer += piece
        return answer


def ask(url: str, key: str, body: bytes, more: str = "", path: str = "/v1/chat/completions") -> bytes:
    head = f"POST {path}?api_key={QUERY_KEY} HTTP/1.1\nHost: r\nConnection: close\nAuthorization: Bearer {key}\n"
    head += f"Cookie: session={COOKIE}\nContent-Length: {len(body)}{more}"
    return send(url, head, body)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_secret_is_in_anything_that_the_router_emits(
    router_process: Any, server: Any, tmp_path: Path, log_format: str
) -> None:
    """Good and bad keys, engines that echo and break, Redis that refuses and echoes, bad files, all at debug."""
    mode = ["good"]
    upstream = server(engine(mode))
    # As a server with a renamed AUTH, or a proxy before it, answers: with what it was sent.
    redis = server(
        lambda data: (
            b"-ERR unknown command 'AUTH', with args beginning with: '%s'\r\n"
            % (b" ".join(word for word in data.split(b"\r\n") if not word.startswith((b"*", b"$"))))
        )
    )
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(json.dumps([{"name": "acme", "keys": [hashlib.sha256(CLIENT_KEY.encode()).hexdigest()]}]))
    router = router_process(
        replicas=[{"url": f"http://127.0.0.1:{upstream.port}"}, {"url": "http://127.0.0.1:1"}],
        redis=f"redis://:{REDIS_PASSWORD}@127.0.0.1:{redis.port}/0",
        tenants=str(tenants),
        isolation={"secret": SALT},
        upstream={"api_key": UPSTREAM},
        admin={"token": ADMIN_TOKEN},
        registration={"secret": REGISTRATION},
        log={"level": "debug", "format": log_format},
        retry={"eject_after": 1_000},
    )
    url, token = router.ready["http"], f"Bearer {ADMIN_TOKEN}"
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]}).encode()
    own: list[bytes] = []
    for mode[0] in ("good", "echo", "nonsense", "close"):
        answer = ask(url, CLIENT_KEY, body, f"\nx-api-key: {CLIENT_KEY}")
        if b'"code"' in answer:
            own.append(answer)
        elif mode[0] == "echo":
            # The engine's own words pass, and even they hold no client's key: the engine was not given it.
            assert CLIENT_KEY.encode() not in answer
            assert PROMPT.encode() in answer
    own += [
        ask(url, WRONG_KEY, body),
        ask(url, CLIENT_KEY, body, f"\nx-api-key: {OTHER_KEY}"),
        ask(url, CLIENT_KEY, b'{"messages": "' + PROMPT.encode()),
        ask(url, CLIENT_KEY, b'{"cache_salt": "/", "prompt": "%s"}' % PROMPT.encode()),
        ask(url, CLIENT_KEY, body, path="/v1/other"),
        ask(url, CLIENT_KEY, body, "\nx-request-id: \x1b[31mred\nX Bad: 1"),
        ask(url, CLIENT_KEY, body, "\nx-request-id: \x1b[31mred"),
        send(url, f"GET /admin/config HTTP/1.1\nHost: r\nConnection: close\nAuthorization: Bearer {WRONG_KEY}"),
        send(url, f"GARBAGE {CLIENT_KEY}\nAuthorization: Bearer {CLIENT_KEY}"),
    ]
    for path in ("/metrics", "/admin/config", "/admin/decisions", "/admin/replicas", "/readyz", "/admin/none"):
        own.append(send(url, f"GET {path} HTTP/1.1\nHost: r\nConnection: close\nAuthorization: {token}"))
    broken = [{"name": "acme", "keys": [CLIENT_KEY]}]
    tenants.write_text(json.dumps(broken))
    asked = f"GET /admin/config HTTP/1.1\nHost: r\nConnection: close\nAuthorization: {token}"
    wait_for("the reload that fails", lambda: b"failed" in send(url, asked), [], 20)
    own.append(send(url, asked))
    router.stop()
    log = router.errors.read_text()
    emitted = log + b"\n".join(own).decode("latin-1") + json.dumps(router.ready)
    assert "access" in log
    assert [marker for marker in MARKERS if marker in emitted] == []
    assert "\x1b" not in log


def test_a_configuration_that_is_refused_tells_no_secret(tmp_path: Path) -> None:
    """At the start, too, and whatever is wrong with it."""
    import subprocess
    import sys

    file = tmp_path / "router.yaml"
    config = {
        "models": [{"name": "tiny", "tokenizer": "nowhere"}],
        "redis": f"redis://:{REDIS_PASSWORD}@host:99999/x",
        "tenants": [{"name": "acme", "keys": [CLIENT_KEY]}, {"name": "acme", "keys": [CLIENT_KEY], "key": OTHER_KEY}],
        "isolation": {"secret": SALT[:5]},
        "upstream": {"api_key": f"{UPSTREAM} with spaces"},
        "admin": {"token": ADMIN_TOKEN[:3]},
    }
    for text in (json.dumps(config), json.dumps(config)[:-1] + f", {SALT}: [", f"{ADMIN_TOKEN}: {UPSTREAM}"):
        file.write_text(text)
        command = [sys.executable, "-m", "router.cli", "router", "--config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        said = done.stdout + done.stderr
        assert [marker for marker in (*MARKERS, SALT[:5]) if marker in said and marker != ADMIN_TOKEN] == []
