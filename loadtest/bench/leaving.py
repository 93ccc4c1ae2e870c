"""`make bench-leaving`: what clients send when their request is cancelled, as a server sees it.

A FIN alone does not tell whether a client has left: one that has only finished sending looks the same. What tells is
what comes back for bytes that are sent to it afterwards: a reset from one that is gone. For each client at hand, and
for a cancellation before the answer's head, after the head and within a stream, this prints

- `sees`: what came first, `FIN` or `RST`;
- `after`: what answered to four bytes sent 20 ms later: `RST`, or `nothing` within 300 ms (a mere half-close).

It is why `abort_on_half_close` is off: see docs/operations.md. Python clients are found by import (openai, httpx,
aiohttp, requests), programs by PATH (curl, wget, node, chromium).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

AFTER_S = 0.4
"""A client is cancelled so long after its request was read."""


class Point(Enum):
    """How far the answer is when the client is cancelled."""

    BEFORE_HEAD = "before the head"
    AFTER_HEAD = "after the head"
    IN_STREAM = "within a stream"


@dataclass
class Seen:
    """What a server saw."""

    sees: str = "nothing"
    after: str = "-"


HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\naccess-control-allow-origin: *\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
CHUNK = b"7\r\ndata: \n\r\n"


class Server:
    """Answers one request as far as a point says, and watches the client from then on."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.seen = Seen()
        self.read = threading.Event()
        self.over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.2)
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self.over.set()
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        while not self.over.is_set():
            try:
                client, _ = self._listening.accept()
            except TimeoutError:
                continue
            with client:
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(10)
        data = b""
        while b"\r\n\r\n" not in data:
            part = client.recv(65_536)
            if not part:
                return
            data += part
        if data.startswith(b"OPTIONS"):
            client.sendall(
                b"HTTP/1.1 204 No Content\r\naccess-control-allow-origin: *\r\naccess-control-allow-headers: *\r\n"
                b"connection: close\r\n\r\n"
            )
            return
        if b"favicon" in data.split(b"\r\n")[0]:
            client.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        if self.point is not Point.BEFORE_HEAD:
            client.sendall(HEAD)
        if self.point is Point.IN_STREAM:
            for _ in range(3):
                client.sendall(CHUNK)
                time.sleep(0.02)
        self.read.set()
        self._watch(client)
        self.over.set()

    def _watch(self, client: socket.socket) -> None:
        client.settimeout(8)
        try:
            while client.recv(65_536):
                pass  # the rest of the body
            self.seen.sees = "FIN"
        except ConnectionResetError:
            self.seen.sees = "RST"
            return
        except TimeoutError:
            return
        time.sleep(0.02)
        self.seen.after = "nothing"
        with contextlib.suppress(OSError):
            client.sendall(b"\r\n\r\n" if self.point is Point.BEFORE_HEAD else CHUNK)
        client.settimeout(0.3)
        deadline_s = time.monotonic() + 0.3
        while time.monotonic() < deadline_s:
            error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self.seen.after = "RST"
                return
            time.sleep(0.01)


PYTHON = {
    "openai (AsyncOpenAI, task cancelled)": (
        "openai",
        """
import asyncio, openai
async def main(url):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0)
    async def ask():
        stream = await client.completions.create(model="m", stream=True, prompt="x")
        async for _ in stream:
            pass
    task = asyncio.create_task(ask())
    await asyncio.to_thread(input)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(2)
""",
    ),
    "httpx (task cancelled)": (
        "httpx",
        """
import asyncio, httpx
async def main(url):
    async def ask():
        async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json={}) as answer:
            async for _ in answer.aiter_bytes():
                pass
    task = asyncio.create_task(ask())
    await asyncio.to_thread(input)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(2)
""",
    ),
    "aiohttp (task cancelled)": (
        "aiohttp",
        """
import asyncio, aiohttp
async def main(url):
    async def ask():
        async with aiohttp.ClientSession() as session, session.post(url, json={}) as answer:
            async for _ in answer.content.iter_any():
                pass
    task = asyncio.create_task(ask())
    await asyncio.to_thread(input)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(2)
""",
    ),
    "requests (process killed)": (
        "requests",
        """
import asyncio, os, requests, signal, threading
async def main(url):
    def ask():
        for _ in requests.post(url, json={}, stream=True, timeout=60).iter_content(1):
            pass
    threading.Thread(target=ask, daemon=True).start()
    await asyncio.to_thread(input)
    os.kill(os.getpid(), signal.SIGKILL)
""",
    ),
}
NODE = """
const control = new AbortController();
process.stdin.once("data", () => { control.abort(); setTimeout(() => process.exit(0), 2000); });
(async () => {
  try {
    const answer = await fetch(process.argv[1], {method: "POST", body: "{}", signal: control.signal});
    for await (const _ of answer.body) {}
  } catch {}
})();
"""
PAGE = """<!doctype html><script>
const control = new AbortController();
(async () => {
  try {
    const answer = await fetch("URL", {method: "POST", body: "{}", signal: control.signal});
    const reader = answer.body.getReader();
    while (!(await reader.read()).done) {}
  } catch {}
})();
setTimeout(() => control.abort(), DELAY);
</script>"""


def clients() -> Iterator[tuple[str, list[str] | None]]:
    """Yield names, and commands that take the URL last and are cancelled by a line on standard input."""
    for name, (module, source) in PYTHON.items():
        if importlib.util.find_spec(module) is not None:
            code = source + "\nimport sys\nasyncio.run(main(sys.argv[1]))\n"
            yield name, [sys.executable, "-c", code]
    if shutil.which("node"):
        yield "Node's fetch (AbortController)", ["node", "-e", NODE]
    for name in ("curl", "wget"):
        if shutil.which(name):
            yield f"{name} (Ctrl-C)", None
    if any(map(shutil.which, BROWSERS)):
        yield "Chromium's fetch (AbortController)", None


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def observe(name: str, command: list[str] | None, point: Point) -> Seen:
    """Cancel one client at one point."""
    server = Server(point)
    url = f"http://127.0.0.1:{server.port}"
    try:
        with tempfile.TemporaryDirectory(prefix="warmroute-leaving-", ignore_cleanup_errors=True) as folder:
            process = _started(name, command, url, folder)
            try:
                if not server.read.wait(30):
                    return Seen("no request")
                time.sleep(AFTER_S)
                if command is not None and process.stdin is not None:
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                elif not name.startswith("Chromium"):
                    process.send_signal(signal.SIGINT)
                server.over.wait(12)
            finally:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
    finally:
        server.close()
    return server.seen


def _started(name: str, command: list[str] | None, url: str, folder: str) -> subprocess.Popen[bytes]:
    if command is not None:
        whole = [*command, url]
    elif name.startswith("curl"):
        whole = ["curl", "-sN", "-d", "{}", url]
    elif name.startswith("wget"):
        whole = ["wget", "-qO-", "--post-data={}", url]
    else:
        browser = next(filter(None, map(shutil.which, BROWSERS)))
        page = f"{folder}/page.html"
        with open(page, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(PAGE.replace("URL", url).replace("DELAY", "3000"))
        whole = [
            str(browser), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-web-security",
            f"--user-data-dir={folder}/profile", f"file://{page}",
        ]  # fmt: skip
    return subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--only", default="", help="clients whose name holds this text (default: all)")
    options = parser.parse_args()
    rows = [
        {"client": name, "point": point.value, **vars(observe(name, command, point))}
        for name, command in clients()
        if options.only.lower() in name.lower()
        for point in Point
    ]
    if options.json:
        print(json.dumps({"rows": rows}))
        return 0
    print(f"{'client':<40} {'cancelled':<18} {'sees':<8} after")
    for row in rows:
        print(f"{row['client']:<40} {row['point']:<18} {row['sees']:<8} {row['after']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
