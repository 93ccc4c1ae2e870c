"""Where bodies are read: short ones at once, long ones in threads, under a deadline.

To render, tokenise and hash 100,000 tokens takes a tenth of a second and more. That work is done in threads, at most
one a core, shortest body first, and gives the interpreter up again and again (`_pause`), so that the loop goes on:
a thread that only computes would hold it for 5 ms at a time, and each wake-up of the loop would wait as long.

A request waits for its prompt until `limits.tokenize_deadline_ms` at most. Then it is placed by what is known: what it
is for, always; the tokens of its beginning, where they were known before. What comes later is dropped. So is a request
that would be one too many to wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from router.config_bounds import LimitsConfig
from router.kv.extra_keys import Lora
from router.kv.schemes import Scheme
from router.proxy.seams import Reader
from router.request.prompt import Prompt
from router.request.reasons import Reason

GLANCE_BYTES = 8 * 2**20
"""A body that is read no further is looked at by the loop itself, up to this size; longer ones get the next thread."""
GLANCE_AGAIN_S = 0.05
PAUSE_S = 0.000_05

Result = TypeVar("Result")
Namings = Callable[[str | None], Sequence[tuple[Scheme, Lora | None]]]
"""From a model's name to how its candidates name blocks. Called from threads."""


def usable_cores() -> int:
    """Return how many cores this process may use, 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


class Reading:
    """One body that is read in a thread. `PromptReading` alone changes it; the thread writes `draft`."""

    __slots__ = ("begun_s", "body", "done", "draft", "failed", "over", "path", "place", "timer")

    def __init__(
        self,
        path: str,
        body: bytes,
        place: tuple[int, int],
        done: Callable[[Prompt, float], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.path = path
        self.body = body
        self.place = place
        self.done = done
        self.failed = failed
        self.begun_s = time.perf_counter()
        self.draft: Prompt | None = None
        self.over = False
        self.timer: asyncio.TimerHandle | None = None


class PromptReading:
    """Reads bodies for the data plane. Lives on the loop; only `_work` runs in threads.

    Args:
        namings: Which chains a prompt will be asked for, so that they are computed in the thread, too.
        threads: How many bodies are read at once; 0: one a core.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reader: Reader,
        namings: Namings,
        limits: LimitsConfig,
        threads: int = 0,
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._namings = namings
        self.configure(limits)
        self._free_threads = threads or usable_cores()
        self._threads = ThreadPoolExecutor(self._free_threads, thread_name_prefix="read-prompt")
        self._waiting: list[Reading] = []
        self._count = 0

    def configure(self, limits: LimitsConfig) -> None:
        """Take over other limits, for bodies that come from now on."""
        self._deadline_s = limits.tokenize_deadline_ms / 1000
        self._max_waiting = limits.tokenize_queue

    @property
    def waiting(self) -> int:
        """Bodies that no thread has begun with."""
        return len(self._waiting)

    def begin(
        self,
        path: str,
        body: bytes,
        done: Callable[[Prompt, float], None],
        failed: Callable[[BaseException], None],
    ) -> Reading:
        """Read a body in a thread.

        Args:
            done: Called once on the loop with the prompt, or with what is known of it, and the seconds it took.
            failed: Called instead when reading it met a fault of the router's own.
        """
        self._count += 1
        reading = Reading(path, body, (len(body), self._count), done, failed)
        if not self._free_threads and len(self._waiting) >= self._max_waiting:
            # Not from within the caller: it does not have the reading yet.
            reading.timer = self._loop.call_later(0, self._late, reading, Reason.QUEUE_FULL)
            if len(body) <= GLANCE_BYTES:
                return reading
        else:
            reading.timer = self._loop.call_later(self._deadline_s, self._late, reading, Reason.DEADLINE)
        insort(self._waiting, reading, key=_place)
        self._start_next()
        return reading

    def cancel(self, reading: Reading) -> None:
        """Nobody wants to know any more; harmless when it is done."""
        self._end(reading)

    def in_thread(self, work: Callable[[Callable[[], None]], Result]) -> asyncio.Future[Result]:
        """Have a thread do something else for a request; `work` gets what to call between slices of it."""
        return self._loop.run_in_executor(self._threads, work, _pause)

    def close(self) -> None:
        """Stop the threads. What waits is never done."""
        for reading in list(self._waiting):
            self._end(reading)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_next(self) -> None:
        while self._free_threads and self._waiting:
            self._free_threads -= 1
            reading = self._waiting.pop(0)
            work = self._threads.submit(self._work, reading)
            work.add_done_callback(lambda work, reading=reading: self._hand_over(reading, work))  # type: ignore[misc]

    def _hand_over(self, reading: Reading, work: Future[Prompt]) -> None:
        """In the thread: back to the loop, if it still runs."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._worked, reading, work)

    def _worked(self, reading: Reading, work: Future[Prompt]) -> None:
        self._free_threads += 1
        self._start_next()
        if reading.over or work.cancelled():
            return
        self._end(reading)
        error = work.exception()
        if error is not None:
            reading.failed(error)
        else:
            reading.done(work.result(), time.perf_counter() - reading.begun_s)

    def _work(self, reading: Reading) -> Prompt:
        def drafted(draft: Prompt) -> None:
            if draft.token_ids is not None:
                self._hash(reading, draft)
            reading.draft = draft
            _pause()

        prompt = self._reader.read(reading.path, reading.body, drafted)
        _pause()
        self._hash(reading, prompt)
        return prompt

    def _hash(self, reading: Reading, prompt: Prompt) -> None:
        for scheme, lora in self._namings(prompt.model):
            if not reading.over:
                prompt.chain(scheme, lora, _pause)

    def _late(self, reading: Reading, reason: Reason) -> None:
        draft = reading.draft
        if draft is None:
            if len(reading.body) > GLANCE_BYTES:
                self._hurry(reading)
                reading.timer = self._loop.call_later(GLANCE_AGAIN_S, self._late, reading, reason)
                return
            draft = self._reader.facts(reading.path, reading.body)
        self._end(reading)
        reading.done(draft.until_now(reason), time.perf_counter() - reading.begun_s)

    def _hurry(self, reading: Reading) -> None:
        if reading in self._waiting:
            self._waiting.remove(reading)
            reading.place = (0, reading.place[1])
            insort(self._waiting, reading, key=_place)

    def _end(self, reading: Reading) -> None:
        if reading.over:
            return
        reading.over = True
        if reading.timer is not None:
            reading.timer.cancel()
        if reading in self._waiting:
            self._waiting.remove(reading)


def _place(reading: Reading) -> tuple[int, int]:
    return reading.place


def _pause() -> None:
    """Let the loop have the interpreter: it takes it within these microseconds if it wants it."""
    time.sleep(PAUSE_S)
