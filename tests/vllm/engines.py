"""A real engine as a process, and what it and the router answer over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from router.tools.processes import Child, StartError

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-vllm"
TOKENIZER = ROOT / "tests" / "golden" / "tokenizer"
MODEL = "tiny"
ADAPTERS = ("ada", "grace")
"""Names of the LoRAs that the tiny model's folder holds in `adapters`."""
BLOCK_SIZE = 32  # the least that the CPU build takes
ENGINE_QUIET_S, ENGINE_START_CPU_S = 180.0, 600.0
"""An engine that starts is given up when it has neither written nor computed for so long, or computed so much: on a
machine that others load it takes many times as long as the 40 to 65 s of a quiet one, and is no less alive."""
LOWEST_PORT, LOWEST_EPHEMERAL_PORT = 10_000, 32_768


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def chunks(self) -> list[Any]:
        """What a stream brought."""
        *chunks, done = [line.removeprefix("data: ") for line in self.text.split("\n\n") if line]
        assert done == "[DONE]"
        return [json.loads(chunk) for chunk in chunks]

    @property
    def streamed(self) -> bool:
        """Whether it is a stream."""
        return self.headers["content-type"].startswith("text/event-stream")

    @property
    def json(self) -> Any:
        """The body; of a stream the last chunk, which carries the usage."""
        return self.chunks[-1] if self.streamed else json.loads(self.text)

    @property
    def content(self) -> str:
        """A chat's answer."""
        if not self.streamed:
            return str(self.json["choices"][0]["message"]["content"])
        return "".join(choice["delta"].get("content") or "" for chunk in self.chunks for choice in chunk["choices"])

    @property
    def token_ids(self) -> list[int]:
        """The prompt and the answer as the engine's ids; a chat has the prompt's beside its choices, others inside."""
        prompt: list[int] = []
        answer: list[int] = []
        for part in self.chunks if self.streamed else [self.json]:
            prompt += part.get("prompt_token_ids") or []
            for choice in part["choices"]:
                prompt += choice.get("prompt_token_ids") or []
                answer += choice.get("token_ids") or []
        return prompt + answer

    @property
    def replica(self) -> str:
        """Which replica the router says answered."""
        return self.headers["x-warmroute-replica"]

    @property
    def predicted(self) -> int:
        """Tokens that the router said the replica had cached."""
        return int(self.headers["x-warmroute-matched-tokens"])

    @property
    def cached(self) -> int:
        """Tokens that the engine says it took from its cache."""
        return int(self.json["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length as the engine counted it."""
        return int(self.json["usage"]["prompt_tokens"])


def call(url: str, method: str, path: str, body: Any = None, more: dict[str, str] | None = None) -> Answer:
    """One request on a connection of its own; `body` is bytes that are sent as they are, or what becomes JSON.

    `more` are headers.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        headers = {} if body is None else {"content-type": "application/json"}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, data, headers | (more or {}))
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()


def free_port() -> int:
    """A port that nobody listens on now."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on now.

    Below those that the kernel gives to connections. An engine binds its ports only after most of a minute, while
    others try to connect to them all the time: among the kernel's own ports one of them would meet itself, and hold it.
    """
    for _ in range(1_000):
        first = random.SystemRandom().randrange(LOWEST_PORT, LOWEST_EPHEMERAL_PORT - count)
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def make_model(out: Path, *options: str) -> Path:
    """Make a tiny model with the engine's Python (`make_model.py` tells the options); return its folder."""
    command = [str(VENV / "bin" / "python"), str(Path(__file__).with_name("make_model.py")), str(TOKENIZER), str(out)]
    made = subprocess.run([*command, *options], capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr
    return out


def engine_command(
    model: Path,
    port: int,
    events: dict[str, Any],
    algorithm: str = "sha256_cbor",
    block_size: int = BLOCK_SIZE,
    tool_parser: str = "hermes",
) -> list[str]:
    """The command that serves a model; `events` are options of its event publisher."""
    config = {"enable_kv_cache_events": True, "publisher": "zmq", **events}
    command = [str(VENV / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--block-size", str(block_size), "--max-model-len", "4096", "--max-num-seqs", "16", "--enforce-eager"]
    command += ["--enable-prefix-caching", "--prefix-caching-hash-algo", algorithm]
    command += ["--enable-prompt-tokens-details", "--kv-events-config", json.dumps(config)]
    return [*command, "--enable-auto-tool-choice", "--tool-call-parser", tool_parser]


def engine_environment(core: int) -> dict[str, str]:
    """The environment of an engine that computes on one core."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VLLM"))}
    return kept | {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        "HF_HUB_OFFLINE": "1",
    }


def healthy(url: str) -> bool:
    """Whether an engine answers."""
    try:
        return call(url, "GET", "/health").status == 200
    except OSError:
        return False


def wait_until_healthy(engine: Child, url: str, others: Sequence[Child] = ()) -> None:
    """Wait until an engine answers, for as long as it is alive and gets on.

    Raises:
        StartError: It or one of `others` ended, it has been still for `ENGINE_QUIET_S`, or it has computed for
            `ENGINE_START_CPU_S` and still does not answer.
    """
    before: tuple[int, float] = (-1, 0.0)
    still_since = time.monotonic()
    while not healthy(url):
        for child in (engine, *others):
            if child.exit_code() is not None:
                raise StartError(child.failure())
        cpu_s = tree_cpu_s(engine.pid)
        now = (engine.written_bytes(), cpu_s)
        if now[0] != before[0] or cpu_s - before[1] > 1.0:
            before, still_since = now, time.monotonic()
        if time.monotonic() - still_since > ENGINE_QUIET_S:
            raise StartError(f"{engine.name} did nothing for {ENGINE_QUIET_S:g} s:\n{engine.errors()}")
        if cpu_s > ENGINE_START_CPU_S:
            raise StartError(f"{engine.name} computed for {cpu_s:.0f} s without an answer:\n{engine.errors()}")
        time.sleep(0.25)


def tree_cpu_s(root: int) -> float:
    """Return the processor time of a process and all that it started, with that of those which have ended."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(ticks.get(pid, 0) for pid in tree) / os.sysconf("SC_CLK_TCK")
