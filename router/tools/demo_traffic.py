"""Sends the demo's sessions over HTTP and keeps what came of each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import orjson

from loadtest.workloads.answers import StreamedAnswer, chat_body
from loadtest.workloads.conversations import Kind, Session
from loadtest.workloads.schedule import Lane

REQUEST_TIMEOUT_S = 120.0
MATCHED_HEADER = "x-warmroute-matched-tokens"
REPLICA_HEADER = "x-warmroute-replica"


@dataclass(slots=True)
class RequestRecord:
    """One request and its outcome. Times are seconds; `sent_s` counts from the start of the run.

    Attributes:
        kind: Class of its session.
        messages: What was sent.
        sent_s: When it was sent.
        ttft_s: From sending to the first generated token; None without one.
        total_s: From sending to the end of the answer.
        replica: Which replica answered, as the router says; empty when it says nothing.
        predicted_tokens: Cached tokens the router expected there; None when it does not say.
        answer: What the engine sent.
        error: What went wrong, or None.
    """

    kind: Kind
    messages: list[dict[str, str]]
    sent_s: float
    ttft_s: float | None = None
    total_s: float = 0.0
    replica: str = ""
    predicted_tokens: int | None = None
    answer: StreamedAnswer = field(default_factory=StreamedAnswer)
    error: str | None = None


class Traffic:
    """One run: lanes of sessions against one URL. `records` is in the order of sending."""

    def __init__(self, url: str, model: str, on_answered: Callable[[RequestRecord], None] | None = None) -> None:
        self.records: list[RequestRecord] = []
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._on_answered = on_answered
        self._started_s = 0.0

    async def run(self, lanes: Sequence[Lane[Session]]) -> None:
        """Send everything; return when the last answer has ended. A failed request ends its session, not the run."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
            self._started_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(self._work_through(client, lane))

    async def _work_through(self, client: aiohttp.ClientSession, lane: Lane[Session]) -> None:
        await asyncio.sleep(lane.start_s)
        for session in lane.sessions:
            await self._hold(client, session)

    async def _hold(self, client: aiohttp.ClientSession, session: Session) -> None:
        answers: list[str] = []
        for number, turn in enumerate(session.turns):
            await asyncio.sleep(turn.think_s)
            messages = session.messages(number, answers if session.remembers else [])
            record = RequestRecord(session.kind, messages, time.monotonic() - self._started_s)
            self.records.append(record)
            await self._send(client, record, turn.answer_tokens)
            if self._on_answered is not None:
                self._on_answered(record)
            if record.error is not None:
                return
            answers.append(record.answer.text)

    async def _send(self, client: aiohttp.ClientSession, record: RequestRecord, answer_tokens: int) -> None:
        body = orjson.dumps(chat_body(self._model, record.messages, answer_tokens))
        started_s = time.monotonic()
        try:
            async with client.post(self._url, data=body, headers={"content-type": "application/json"}) as response:
                record.replica = response.headers.get(REPLICA_HEADER, "")
                predicted = response.headers.get(MATCHED_HEADER, "")
                record.predicted_tokens = int(predicted) if predicted.isdigit() else None
                if response.status != 200:
                    record.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                    return
                async for line in response.content:
                    if record.answer.feed(line) and record.ttft_s is None:
                        record.ttft_s = time.monotonic() - started_s
        except (aiohttp.ClientError, TimeoutError) as error:
            record.error = f"{type(error).__name__}: {error}"
        finally:
            record.total_s = time.monotonic() - started_s
        if record.error is None:
            record.error = record.answer.error or (None if record.answer.done else "the stream ended early")
