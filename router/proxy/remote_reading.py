"""What a replica alone can tell of a prompt is asked before it is placed: for want of a tokenizer, or for its media.

The one part of a request's way that is a task: it waits for a network that is not the answer's. Bounded in time and in
number, since the request waits for it. Whatever goes wrong is a reason to place by load, and is counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from router.config_bounds import LimitsConfig
from router.fleet.replica import Replica, ReplicaState
from router.proxy.reading import PromptReading
from router.proxy.seams import Health, Records
from router.request.prompt import Prompt
from router.request.reasons import NotUnderstoodError, Reason
from router.request.remote import (
    OWN_ENCODING,
    NotServedError,
    Question,
    RemoteTokenizer,
    may_ask,
    question_for,
    read_answer,
    take_answer,
)
from router.request.token_cache import TokenCache

INLINE_ANSWER_BYTES = 16 * 2**10
"""Longer answers (some 2,500 ids) are read and hashed in a thread."""
RENDER_AGAIN_S = 60.0
"""A replica without `/render` is asked again after so long: it may be another engine by then."""
_RESULTS: dict[Reason, str] = {
    Reason.REMOTE_DEADLINE: "deadline",
    Reason.REMOTE_BUSY: "busy",
    Reason.REMOTE_REFUSED: "refused",
    Reason.REMOTE_FAILED: "failed",
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
        self.configure(limits)
        self._cache = cache
        self._turn = 0
        self._renders_from_s: dict[str, float] = {}  # by address: it had no /render, and is left alone until then
        self._asking: set[asyncio.Task[None]] = set()

    def configure(self, limits: LimitsConfig) -> None:
        """Take over other limits, for questions from now on."""
        self._deadline_s = limits.remote_tokenize_deadline_ms / 1000
        self._at_once = limits.remote_tokenize_requests
        self._inline_body_bytes = limits.inline_body_bytes

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
        if not self._able(prompt.model, renders=prompt.reason is Reason.MEDIA):
            return None
        question = None
        if len(body) <= self._inline_body_bytes:
            try:
                question = question_for(prompt, path, body, self._own_encoding(prompt.model))
            except Exception:
                self._broken(prompt)
            if question is None or (question.renders and not self._able(prompt.model, renders=True)):
                return None
        if len(self._asking) >= self._at_once:
            self._stays(prompt, Reason.REMOTE_BUSY)
            return None
        task = self._loop.create_task(self._ask(prompt, path, body, question, done))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    def close(self) -> None:
        """End all questions. Nobody is told."""
        for task in self._asking:
            task.cancel()

    def _next_url(self, model: str | None, renders: bool) -> str | None:
        """Return the address of a replica that can tell of the model, each in its turn; None when there is none."""
        able = self._able(model, renders)
        if not able:
            return None
        self._turn += 1
        return able[self._turn % len(able)]

    def _able(self, model: str | None, renders: bool) -> list[str]:
        """Return the addresses of the ready replicas that can tell of the model.

        Of media no replica can tell when engines load the model from different paths: identifiers differ with them.
        """
        now_s = time.monotonic()
        model = self._fleet.sole_model() if model is None else model
        serving = [
            replica
            for replica in self._fleet.replicas.values()
            if model in replica.models and replica.state(now_s) is ReplicaState.READY
        ]
        if renders:
            if len({_base_root(replica, model) for replica in serving}) > 1:
                return []
            self._renders_from_s = {url: at_s for url, at_s in self._renders_from_s.items() if at_s > now_s}
        return [replica.url for replica in serving if not renders or replica.url not in self._renders_from_s]

    def _own_encoding(self, model: str | None) -> bool:
        """Tell whether the engine encodes a model's chats by code of its own, as far as names tell."""
        model = self._fleet.sole_model() if model is None else model
        serving = [replica for replica in self._fleet.replicas.values() if model in replica.models]
        names = (model, *(_base_root(replica, model) for replica in serving))
        return any(name is not None and OWN_ENCODING.search(name) for name in names)

    async def _ask(
        self, prompt: Prompt, path: str, body: bytes, question: Question | None, done: Callable[[Prompt, float], None]
    ) -> None:
        begun_s = time.perf_counter()
        url: str | None = None
        try:
            async with asyncio.timeout(self._deadline_s):
                if question is None:
                    own = self._own_encoding(prompt.model)
                    question = await self._reading.in_thread(lambda _: question_for(prompt, path, body, own))
                if question is not None:
                    url = self._next_url(prompt.model, question.renders)
                if question is not None and url is not None:
                    prompt = await self._complete(prompt, question, await self._tokenizer.ask(url, question))
                    self._recorder.remote_tokenized("answered" if prompt.reason is None else "failed")
        except TimeoutError:
            self._stays(prompt, Reason.REMOTE_DEADLINE)  # too late even to ask, perhaps
        except NotUnderstoodError as error:
            if isinstance(error, NotServedError) and question is not None and question.renders and url is not None:
                self._renders_from_s[url] = time.monotonic() + RENDER_AGAIN_S
            self._stays(prompt, error.reason)
        except Exception:
            self._broken(prompt)
            self._recorder.remote_tokenized("failed")
        done(prompt, time.perf_counter() - begun_s)

    async def _complete(self, prompt: Prompt, question: Question, answer: bytes) -> Prompt:
        def work(pause: Callable[[], None] | None) -> Prompt:
            told = read_answer(question, answer)
            if told is None:
                raise NotUnderstoodError(Reason.REMOTE_FAILED)
            full = replace(prompt)  # past the deadline the thread must not change what is placed
            take_answer(full, told[0], self._cache, told[1])
            for scheme, lora in self._fleet.namings(full.model):
                full.chain(scheme, lora, pause)
            return full

        if len(answer) <= INLINE_ANSWER_BYTES:
            return work(None)
        return await self._reading.in_thread(work)

    def _broken(self, prompt: Prompt) -> None:
        """A fault of ours must not become the client's."""
        _log.exception("internal error while asking a replica about a prompt")
        if prompt.reason is not Reason.MEDIA:
            prompt.reason = Reason.INTERNAL

    def _stays(self, prompt: Prompt, why: Reason) -> None:
        """Count a prompt that no replica told of. One with media stays what it was: known up to them."""
        self._recorder.remote_tokenized(_RESULTS[why])
        if prompt.reason is not Reason.MEDIA:
            prompt.reason = why


def _base_root(replica: Replica, model: str | None) -> str | None:
    """Return the path that an engine loaded a model, or an adapter's base model, from."""
    served = replica.models[model] if model is not None else None
    base = replica.models.get(served.parent) if served is not None and served.parent is not None else served
    return None if base is None else base.root
