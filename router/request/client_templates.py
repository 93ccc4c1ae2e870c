"""Chat templates that come from outside, rendered in a process of their own that can be killed.

A template is a program. The sandbox keeps it from files and from Python's insides, but not from running for ever or
filling the memory; a thread can't be stopped, a process can. There is one such process, it is started when it is first
needed, and it renders one template after another. A template that takes too long costs the process its life and its
own request its chain; the request is forwarded all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from router.request.chat import CHAT, DEFAULT, Chat, Dialect
from router.request.reasons import NotUnderstoodError, Reason

MAX_SOURCE_CHARS = 2**16
MAX_REQUEST_BYTES = 4 * 2**20
_START_S = 10.0  # the process imports jinja; a machine under load takes seconds for it
_LENGTH_BYTES = 4
_FIELDS = (
    "messages",
    "tools",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)
_ENVIRONMENT = ("TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")  # the time zone is what `strftime_now` prints


class ClientTemplates:
    """Renders in a child process. Safe to use from several threads; they wait for each other, up to the limit."""

    def __init__(self, limit_s: float = 0.25) -> None:
        """Make a renderer; no process is started yet.

        Args:
            limit_s: Seconds for one request, waiting for the process included; its start is not counted.
        """
        self.limit_s = limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, source: str, body: Mapping[str, Any], chat: Chat) -> str:
        """Return the prompt's text under a client's template.

        Args:
            source: The template.
            body: The chat completion's body.
            chat: The model's own rendering, for its special tokens, default variables and limit.

        Raises:
            NotUnderstoodError: With the reason; TEMPLATE_TIMEOUT past the limit.
        """
        text: str = self.ask("render", {DEFAULT: source}, chat, body)["text"]
        return text

    def ask(
        self,
        what: str,
        sources: Mapping[str, str],
        chat: Chat,
        body: Mapping[str, Any] | None = None,
        dialect: Dialect = CHAT,
        limit_s: float | None = None,
    ) -> dict[str, Any]:
        """Have the process do something with templates.

        Args:
            what: `render`, `before_media`, `merges_inline_system` or `check`; see `client_template_process`.
            sources: Templates by name.
            chat: For its special tokens, default variables and limit.
            body: A chat completion's.
            dialect: How its API is treated.
            limit_s: Seconds, where it is another limit than that of requests.

        Raises:
            NotUnderstoodError: With the reason; TEMPLATE_TIMEOUT past the limit.
        """
        asked = {
            "what": what,
            "sources": dict(sources),
            "body": {name: body[name] for name in _FIELDS if name in body} if body is not None else {},
            "dialect": [dialect.with_defaults, dialect.orders_calls],
            "special_tokens": dict(chat.special_tokens),
            "defaults": dict(chat.defaults),
            "max_chars": chat.max_chars,
        }
        limit_s = self.limit_s if limit_s is None else limit_s
        try:
            request = json.dumps(asked).encode()
        except (RecursionError, TypeError, ValueError):  # nested deeper than can be written
            raise NotUnderstoodError(Reason.BAD_REQUEST) from None
        if any(len(source) > MAX_SOURCE_CHARS for source in sources.values()) or len(request) > MAX_REQUEST_BYTES:
            raise NotUnderstoodError(Reason.TOO_LONG)
        if not self._lock.acquire(timeout=limit_s):
            raise NotUnderstoodError(Reason.TEMPLATE_TIMEOUT)
        try:
            answer = self._ask(request, _LENGTH_BYTES + 6 * chat.max_chars + 64, limit_s)  # 6: a character as \uXXXX
        finally:
            self._lock.release()
        if "reason" in answer:
            raise NotUnderstoodError(Reason(answer["reason"]))
        return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _ask(self, request: bytes, most_bytes: int, limit_s: float) -> dict[str, Any]:
        try:
            process = self._running()
            deadline_s = time.monotonic() + limit_s
            _write(process, len(request).to_bytes(_LENGTH_BYTES, "big") + request, deadline_s)
            answer: dict[str, Any] = json.loads(_read_frame(process, most_bytes, deadline_s))
        except TimeoutError:
            self._kill()
            raise NotUnderstoodError(Reason.TEMPLATE_TIMEOUT) from None
        except (OSError, EOFError, ValueError):  # it died, of memory for one
            self._kill()
            raise NotUnderstoodError(Reason.TEMPLATE_ERROR) from None
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._kill()
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-m", "router.request.client_template_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            bufsize=0,
            start_new_session=True,
        )
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None  # noqa: S101 - for the type alone: both were asked for
            os.set_blocking(pipe.fileno(), False)
        _read_frame(process, _LENGTH_BYTES, time.monotonic() + _START_S)
        return process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


def _write(process: subprocess.Popen[bytes], data: bytes, deadline_s: float) -> None:
    assert process.stdin is not None  # noqa: S101 - for the type alone
    descriptor, left = process.stdin.fileno(), memoryview(data)
    while left:
        _wait(descriptor, select.POLLOUT, deadline_s)
        left = left[os.write(descriptor, left) :]


def _read_frame(process: subprocess.Popen[bytes], most_bytes: int, deadline_s: float) -> bytes:
    length = int.from_bytes(_read(process, _LENGTH_BYTES, deadline_s), "big")
    if length > most_bytes:
        raise ValueError("an answer over the limit")
    return _read(process, length, deadline_s)


def _read(process: subprocess.Popen[bytes], count: int, deadline_s: float) -> bytes:
    assert process.stdout is not None  # noqa: S101 - for the type alone
    descriptor, data = process.stdout.fileno(), bytearray()
    while len(data) < count:
        _wait(descriptor, select.POLLIN, deadline_s)
        piece = os.read(descriptor, count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _wait(descriptor: int, event: int, deadline_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
        raise TimeoutError
