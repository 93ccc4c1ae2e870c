"""From an OpenAI request to its answer: read, choose a rank, queue, deliver."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time

import orjson
from aiohttp import web

from replica.simengine.answering import Answer, StreamedAnswer
from replica.simengine.bodies import Ask, read_ask, read_json
from replica.simengine.chats import ChatFormat
from replica.simengine.choices import Choice
from replica.simengine.completions import CompletionFormat
from replica.simengine.core.request import Request
from replica.simengine.engine import Engine
from replica.simengine.faults import Faults
from replica.simengine.formats import Format
from replica.simengine.refusals import Refusal
from replica.simengine.settings import Settings
from replica.simengine.text import Text
from replica.simengine.words import Words

INLINE_BYTES = 64 * 1_024
"""Longer bodies are read in a thread, so that tokens go on flowing."""


class Generator:
    """Answers completions and chats.

    Attributes:
        open: Requests being answered.
    """

    def __init__(self, settings: Settings, text: Text, words: Words, engines: list[Engine], faults: Faults) -> None:
        self.open = 0
        self._settings = settings
        self._text = text
        self._words = words
        self._engines = engines
        self._faults = faults
        self._numbers = itertools.count()
        self._turn = 0

    async def answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        """Return the answer to a completion or a chat, whole or as a stream.

        Raises:
            Refusal: As the engine would refuse it.
        """
        if self._faults.refuse:
            message = "This engine refuses requests (fault `refuse`)."
            raise Refusal(message, status=self._faults.refuse, kind="InternalServerError")
        data = await request.read()
        if len(data) > INLINE_BYTES:
            ask = await asyncio.to_thread(self._read, data, request.headers.get("Content-Type"), chat=chat)
        else:
            ask = self._read(data, request.headers.get("Content-Type"), chat=chat)
        engine = self._engine_for(request)
        choices = self._choices(ask)
        number = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        created = int(time.time())
        make = ChatFormat if chat else CompletionFormat
        name = f"{'chatcmpl' if chat else 'cmpl'}-{number}"
        form = make(name, created, ask, choices, self._settings, self._text)
        self.open += 1
        try:
            if self._faults.first_byte_delay_s:
                await asyncio.sleep(self._faults.first_byte_delay_s)
            if ask.stream:
                return await self._stream(request, ask, engine, form)
            answer = Answer(engine, form)
            try:
                self._submit(engine, answer, choices)
                await answer.ended.wait()
            finally:
                answer.abort()
            return web.Response(body=orjson.dumps(form.whole()), content_type="application/json")
        finally:
            self.open -= 1

    def _read(self, data: bytes, content_type: str | None, *, chat: bool) -> Ask:
        return read_ask(read_json(data, content_type), chat=chat, settings=self._settings, text=self._text)

    async def _stream(self, request: web.Request, ask: Ask, engine: Engine, form: Format) -> web.StreamResponse:
        answer = StreamedAnswer(engine, form, self._faults.break_after_tokens)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            self._submit(engine, answer, form.choices)
            await response.prepare(request)
            answer.connect(response, request)
            await answer.ended.wait()
            answer.finish(include_usage=ask.include_usage)
        finally:
            answer.abort()
        await response.write_eof()
        return response

    def _choices(self, ask: Ask) -> list[Choice]:
        choices: list[Choice] = []
        for at, prompt in enumerate(ask.prompts):
            for child in range(ask.n):
                request = Request(
                    request_id=str(next(self._numbers)),
                    token_ids=list(prompt),
                    max_tokens=ask.max_tokens[at],
                    next_token=self._words.answer(ask.seed, prompt, child, opens_line=ask.chat),
                    stop_token_ids=ask.stop_token_ids,
                    min_tokens=ask.min_tokens,
                    reads_cache=ask.reads_cache,
                    adapter=ask.adapter,
                    salt=ask.salt,
                )
                choices.append(Choice(len(choices), at, request, ask, self._words))
        return choices

    @staticmethod
    def _submit(engine: Engine, answer: Answer, choices: list[Choice]) -> None:
        before: Choice | None = None
        for choice in choices:
            if before is not None and before.prompt_index == choice.prompt_index:
                choice.request.keys = list(before.request.keys)  # one prompt is hashed once, whatever n
            engine.submit(choice.request, answer.sink(choice))
            before = choice

    def _engine_for(self, request: web.Request) -> Engine:
        """Return the rank that the header names, else the least loaded, taking turns among equals."""
        asked = request.headers.get("X-data-parallel-rank", "")
        if asked.strip().lstrip("+-").isdecimal():
            rank = int(asked)
            if not 0 <= rank < len(self._engines):
                raise Refusal(f"data_parallel_rank {rank} is out of range [0, {len(self._engines)}).")
            return self._engines[rank]
        ranks = len(self._engines)
        turn, self._turn = self._turn, (self._turn + 1) % ranks
        return self._engines[
            min(((turn + each) % ranks for each in range(ranks)), key=lambda at: _load(self._engines[at]))
        ]


def _load(engine: Engine) -> float:
    """Return how loaded a rank is: a queue weighs more where blocks run short, for there it moves slowly."""
    scarcity = max(0.0, engine.scheduler.pool.usage_share - 0.5)
    return engine.load + len(engine.scheduler.waiting) * 6.0 * scarcity
