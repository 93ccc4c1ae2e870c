"""Where the router has no tokenizer of a model, a replica is asked before the prompt is placed.

The one part of a request's way that is a task: it waits for a network that is not the answer's. Bounded in time and in
number, since the request waits for it. Whatever goes wrong is a reason to place by load, and is counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from router.config import LimitsConfig
from router.fleet.replica import ReplicaState
from router.proxy.reading import PromptReading
from router.proxy.seams import Health, Records
from router.request.prompt import Prompt
from router.request.reasons import NotUnderstoodError, Reason
from router.request.remote import Question, RemoteTokenizer, ids_in, may_ask, question_for, take_answer
from router.request.token_cache import TokenCache

INLINE_ANSWER_BYTES = 16 * 2**10
"""Longer answers (some 2,500 ids) are read and hashed in a thread."""
_RESULTS: dict[Reason | None, str] = {
    Reason.REMOTE_DEADLINE: "deadline",
    Reason.REMOTE_BUSY: "busy",
    Reason.REMOTE_REFUSED: "refused",
    Reason.REMOTE_FAILED: "failed",
    Reason.INTERNAL: "failed",
}

_log = logging.getLogger(__name__)


class RemoteReading:
    """Has replicas tokenise. Lives on the loop; long bodies and answers are read by the threads of `reading`.

    Args:
        cache: Where the chains of answered prompts are kept; None: nowhere.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tokenizer: RemoteTokenizer,
        fleet: Health,
        reading: PromptReading,
        recorder: Records,
        limits: LimitsConfig,
        cache: TokenCache | None = None,
    ) -> None:
        self._loop = loop
        self._tokenizer = tokenizer
        self._fleet = fleet
        self._reading = reading
        self._recorder = recorder
        self._deadline_s = limits.remote_tokenize_deadline_ms / 1000
        self._at_once = limits.remote_tokenize_requests
        self._inline_body_bytes = limits.inline_body_bytes
        self._cache = cache
        self._turn = 0
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def asking(self) -> int:
        """Questions under way."""
        return len(self._asking)

    def begin(
        self, prompt: Prompt, path: str, body: bytes, done: Callable[[Prompt, float], None]
    ) -> asyncio.Task[None] | None:
        """Ask about a prompt that the reader did not understand, if that is of use.

        Args:
            done: Called once on the loop with the prompt, or with why it is still not known, and the seconds that the
                question took. Cancel the task and it is not called.

        Returns:
            The question under way; None when nothing is asked. Then `done` is not called, and the prompt's reason may
            be another one.
        """
        if not self._at_once or not may_ask(prompt, path):
            return None
        url = self._next_url(prompt.model)
        if url is None:
            return None
        question = None
        if len(body) <= self._inline_body_bytes:
            try:
                question = question_for(prompt, path, body)
            except Exception:
                self._broken(prompt)
            if question is None:
                return None
        if len(self._asking) >= self._at_once:
            prompt.reason = Reason.REMOTE_BUSY
            self._count(prompt)
            return None
        task = self._loop.create_task(self._ask(prompt, path, body, url, question, done))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    def close(self) -> None:
        """End all questions. Nobody is told."""
        for task in self._asking:
            task.cancel()

    def _next_url(self, model: str | None) -> str | None:
        """Return the address of a ready replica that serves the model, each in its turn."""
        now_s = time.monotonic()
        serving = [
            replica.url
            for replica in self._fleet.replicas.values()
            if model in replica.models and replica.state(now_s) is ReplicaState.READY
        ]
        if not serving:
            return None
        self._turn += 1
        return serving[self._turn % len(serving)]

    async def _ask(
        self,
        prompt: Prompt,
        path: str,
        body: bytes,
        url: str,
        question: Question | None,
        done: Callable[[Prompt, float], None],
    ) -> None:
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._deadline_s):
                if question is None:
                    question = await self._reading.in_thread(lambda _: question_for(prompt, path, body))
                if question is not None:
                    answer = await self._tokenizer.ask(url, question)
                    prompt = await self._complete(prompt, answer)
        except TimeoutError:
            prompt.reason = Reason.REMOTE_DEADLINE
        except NotUnderstoodError as error:
            prompt.reason = error.reason
        except Exception:
            self._broken(prompt)
        if question is not None or prompt.reason is Reason.REMOTE_DEADLINE:  # too late even to ask
            self._count(prompt)
        done(prompt, time.perf_counter() - begun_s)

    async def _complete(self, prompt: Prompt, answer: bytes) -> Prompt:
        def work(pause: Callable[[], None] | None) -> Prompt:
            token_ids = ids_in(answer)
            if token_ids is None:
                raise NotUnderstoodError(Reason.REMOTE_FAILED)
            full = replace(prompt)  # past the deadline the thread must not change what is placed
            take_answer(full, token_ids, self._cache)
            for scheme, lora in self._fleet.namings(full.model):
                full.chain(scheme, lora, pause)
            return full

        if len(answer) <= INLINE_ANSWER_BYTES:
            return work(None)
        return await self._reading.in_thread(work)

    def _broken(self, prompt: Prompt) -> None:
        """A fault of ours must not become the client's."""
        _log.exception("internal error while asking a replica to tokenise")
        prompt.reason = Reason.INTERNAL

    def _count(self, prompt: Prompt) -> None:
        self._recorder.remote_tokenized(_RESULTS.get(prompt.reason, "answered"))
