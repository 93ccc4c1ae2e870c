"""How a request gets its prompt: from the reader at once, from the reader in a thread, or from a replica.

A body that was read before, a short one, and one of which all but a little was tokenised before is read at once. Any
other one, and one whose own template may be rendered, goes to a thread (`reading`): to hand it over and take it back
costs more than to read a conversation's next turn. Where the router has no tokenizer, a replica is asked then
(`remote_reading`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from router.config_bounds import LimitsConfig
from router.proxy.reading import PromptReading
from router.proxy.remote_reading import RemoteReading
from router.proxy.seams import Reader
from router.request.prompt import Prompt

Done = Callable[[Prompt, float], None]
Failed = Callable[[BaseException], None]


class Cancellable(Protocol):
    """What is under way for a request."""

    def cancel(self) -> object:
        """Nobody wants to know any more."""


class Prompts:
    """Gets prompts for the data plane. Lives on the loop.

    Args:
        remote: None: replicas are not asked.
        inline_body_bytes: Bodies with more than this to tokenise are read in a thread.
        client_templates: Whether some model runs a template that the request brings: rendering it may block.
    """

    def __init__(
        self,
        reader: Reader,
        reading: PromptReading,
        remote: RemoteReading | None,
        inline_body_bytes: int,
        client_templates: bool,
    ) -> None:
        self.reader = reader
        self.reading = reading
        self.remote = remote
        self._inline_body_bytes = inline_body_bytes
        self._client_templates = client_templates

    def configure(self, limits: LimitsConfig, *, client_templates: bool) -> None:
        """Take over other limits, for prompts from now on."""
        self._inline_body_bytes = limits.inline_body_bytes
        self._client_templates = client_templates
        self.reading.configure(limits)
        if self.remote is not None:
            self.remote.configure(limits)

    def begin(self, path: str, body: bytes, done: Done, failed: Failed) -> Cancellable | None:
        """Get the prompt of a body.

        Args:
            done: Called once with the prompt, or with what is known of it, and the seconds it took.
            failed: Called instead when reading it met a fault of the router's own.

        Returns:
            What is under way; None when one of the two was called already.
        """
        if self._client_templates and may_hold_template(body):
            return _Prompting(self, path, body, done, failed)
        begun_s = time.perf_counter()
        try:
            prompt = self.reader.quick(path, body, self._inline_body_bytes)
        except Exception as error:
            failed(error)
            return None
        if prompt is None:
            return _Prompting(self, path, body, done, failed)
        return self.complete(prompt, time.perf_counter() - begun_s, path, body, done)

    def complete(self, prompt: Prompt, seconds: float, path: str, body: bytes, done: Done) -> Cancellable | None:
        """Ask a replica about a prompt that was read if that is of use, else call `done`; see `begin`."""
        if prompt.reason is not None and self.remote is not None:
            asked = self.remote.begin(prompt, path, body, lambda prompt, more_s: done(prompt, seconds + more_s))
            if asked is not None:
                return asked
        done(prompt, seconds)
        return None

    def close(self) -> None:
        """End what is under way. Nobody is told."""
        if self.remote is not None:
            self.remote.close()
        self.reading.close()


class _Prompting:
    """A body that is read in a thread, and then perhaps asked about."""

    __slots__ = ("_asked", "_done", "_prompts", "_reading")

    def __init__(self, prompts: Prompts, path: str, body: bytes, done: Done, failed: Failed) -> None:
        self._prompts = prompts
        self._done = done
        self._asked: Cancellable | None = None
        self._reading = prompts.reading.begin(path, body, self._read, failed)

    def _read(self, prompt: Prompt, seconds: float) -> None:
        reading = self._reading
        self._asked = self._prompts.complete(prompt, seconds, reading.path, reading.body, self._done)

    def cancel(self) -> None:
        """See `Cancellable`."""
        self._prompts.reading.cancel(self._reading)
        if self._asked is not None:
            self._asked.cancel()


def may_hold_template(body: bytes) -> bool:
    """Tell whether a body may hold a `chat_template` of the client's own, without parsing it.

    True, too, for a key that is spelled with escapes, or not in UTF-8: only then does JSON hold a NUL.
    """
    return b'"chat_template"' in body or b"\\u" in body or b"\0" in body
