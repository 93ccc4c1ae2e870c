"""A line for each request, written by a thread of its own.

A line is made at once, of what is at hand: kept until that thread comes, all that it is made from would have to be
fetched from slower memory again, and requests meanwhile would be given memory that is as cold.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

from router.kv.log_lines import MAX_VALUE_CHARACTERS, clean
from router.scheduling.decision import Decision, Outcome
from router.telemetry.line_writer import LineWriter

Format = Literal["json", "console"]

_MAX_TEXTS = 4_096


class RequestFacts:
    """What the data plane knows of a request besides its placement.

    Attributes:
        request_id: Cleaned (`logs.clean_request_id`) or the router's own.
        method: HTTP method.
        path: Without its query, which may hold keys.
        model: As the body names it.
        stream: Whether the answer was asked for as a stream.
        tenant: Whose it is; None where it is nobody's.
        trace_id: Of its trace, 32 hex digits; None where it is not traced.
    """

    __slots__ = ("method", "model", "path", "request_id", "stream", "tenant", "trace_id")

    def __init__(
        self,
        request_id: str,
        method: str,
        path: str,
        model: str | None = None,
        stream: bool = False,
        tenant: str | None = None,
        trace_id: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.method = method
        self.path = path
        self.model = model
        self.stream = stream
        self.tenant = tenant
        self.trace_id = trace_id


class AccessLog:
    """The access log.

    Args:
        stream: Where to; standard error if left out.
        log_format: `json` or `console`.
        enabled: `log.access`; without it nothing is written.
    """

    def __init__(self, stream: TextIO | None = None, log_format: Format = "console", *, enabled: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._json = log_format == "json"
        self.enabled = enabled
        self.writer = LineWriter("access-log", self._put, _lost, self._line)
        self._clock = (-1, "")
        """A second, and how it is written."""
        self._texts: dict[str, str] = {}
        """How values that come again and again are written."""
        self._asked: dict[tuple[str, str, int | None, str | None, str | None, bool], str] = {}
        """And what is asked again and again."""
        self._places: dict[tuple[str, str, str, str], str] = {}
        """And where it goes, and why."""
        key: Callable[[str], str] = (lambda name: f', "{name}": ') if self._json else (lambda name: f" {name}=")
        self._method, self._path = key("method"), key("path")
        level = '+00:00", "level": "info", "logger": "warmroute.access"' if self._json else " info    access:"
        self._begin = level + key("request_id")
        self._status, self._model, self._total_s, self._ttft_s = map(key, ("status", "model", "total_s", "ttft_s"))
        self._error, self._retries = key("error"), key("retries")
        self._tenant, self._queued_s = key("tenant"), key("queued_s")
        self._trace_id = key("trace_id")
        self._yes, self._no = ("true", "false") if self._json else ("True", "False")
        self._stream_is = {stream: key("stream") + (self._yes if stream else self._no) for stream in (True, False)}
        self._aborted = key("aborted") + self._yes
        self._unit, self._policy, self._why, self._trust = map(key, ("unit", "policy", "why", "trust"))
        self._prompt_tokens, self._matched = key("prompt_tokens"), key("matched_tokens")
        self._cached, self._not_understood = key("cached_tokens"), key("not_understood")
        self._end = "}\n" if self._json else "\n"

    def write(self, decision: Decision | None, outcome: Outcome, facts: RequestFacts) -> None:
        """Add the line of a request that ended; what is not known is left out."""
        if self.enabled:
            self.writer.add_raw((time.time(), decision, outcome, facts))

    def _line(self, made_from: tuple[float, Decision | None, Outcome, RequestFacts]) -> str:
        """Return a line. Texts are cleaned here."""
        now_s, decision, outcome, facts = made_from
        second = int(now_s)
        clock = self._clock
        if second != clock[0]:
            clock = self._clock = (second, self._written(second))
        milliseconds = int((now_s - second) * 1000)
        model, tenant, status = facts.model, facts.tenant, outcome.status
        asked = self._asked.get((facts.method, facts.path, status, model, tenant, facts.stream))
        if asked is None:
            asked = self._asked_text(facts, status)
        ttft_s = outcome.ttft_s
        ttft = "" if ttft_s is None else f"{self._ttft_s}{ttft_s:.6f}"
        ended = ""
        if outcome.error is not None or outcome.aborted:
            ended = "" if outcome.error is None else self._error + self._text(outcome.error)
            ended += self._aborted if outcome.aborted else ""
        placed = "" if decision is None else self._placed_text(decision, outcome.cached_tokens)
        if facts.trace_id is not None:
            placed += self._trace_id + self._own(facts.trace_id)
        return (
            f"{clock[1]}.{milliseconds:03d}{self._begin}{self._own(facts.request_id)}{asked}"
            f"{outcome.total_s:.6f}{ttft}{ended}{placed}{self._end}"
        )

    def _asked_text(self, facts: RequestFacts, status: int | None) -> str:
        """Return what was asked, up to the key of its seconds; kept, since nearly all requests ask the same."""
        text = self._text
        parts = [self._method, text(facts.method), self._path, text(facts.path)]
        if status is not None:
            parts += (self._status, str(status))
        if facts.model is not None:
            parts += (self._model, text(facts.model))
        if facts.tenant is not None:
            parts += (self._tenant, text(facts.tenant))
        parts += (self._stream_is[facts.stream], self._total_s)
        asked = "".join(parts)
        if len(asked) <= MAX_VALUE_CHARACTERS:
            if len(self._asked) >= _MAX_TEXTS:
                self._asked.clear()
            self._asked[(facts.method, facts.path, status, facts.model, facts.tenant, facts.stream)] = asked
        return asked

    def _placed_text(self, decision: Decision, cached_tokens: int | None) -> str:
        key = (decision.winner, decision.policy, decision.reason, decision.trust)
        place = self._places.get(key)
        if place is None:
            names = (self._unit, self._policy, self._why, self._trust)
            place = "".join([name + self._text(value) for name, value in zip(names, key, strict=True)])
            place += self._prompt_tokens
            if len(self._places) >= _MAX_TEXTS:
                self._places.clear()
            self._places[key] = place
        placed = f"{place}{decision.prompt_tokens}{self._matched}{decision.matched_tokens}"
        if cached_tokens is not None:
            placed += f"{self._cached}{cached_tokens}"
        if decision.prompt_reason is not None:
            placed += self._not_understood + self._text(decision.prompt_reason)
        if decision.queued_s:
            placed += f"{self._queued_s}{decision.queued_s:.6f}"
        if decision.retries:
            placed += f"{self._retries}{len(decision.retries)}"
        return placed

    def close(self) -> None:
        """Write all that waits; no more is taken. May block: not for the loop."""
        self.enabled = False
        self.writer.close()

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _written(self, second: int) -> str:
        """Return how a second is written."""
        if self._json:
            return '{"at": "' + datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return time.strftime("%H:%M:%S", time.localtime(second))

    def _text(self, value: str) -> str:
        known = self._texts.get(value)
        if known is None:
            if len(self._texts) >= _MAX_TEXTS:
                self._texts.clear()
            cleaned = clean(value)
            known = json.dumps(cleaned) if self._json else cleaned
            if len(value) <= MAX_VALUE_CHARACTERS:
                self._texts[value] = known
        return known

    def _own(self, request_id: str) -> str:
        """Return a text that comes once."""
        if len(request_id) > MAX_VALUE_CHARACTERS or not (request_id.isascii() and request_id.isprintable()):
            request_id = clean(request_id)
        if self._json and request_id.isalnum() and request_id.isascii():
            return f'"{request_id}"'
        return json.dumps(request_id) if self._json else request_id


def _lost(count: int) -> str:
    return f"{count} lines of the access log were lost: standard error takes them too slowly\n"
