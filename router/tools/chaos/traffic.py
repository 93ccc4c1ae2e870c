"""Clients that talk to both routers, and what came of each request.

A request fails when it is not answered whole, and somebody could have answered it. So none of ours is lost when:

- the router it was sent to was killed, or ended, before its answer began: the client asks the other router, as any
  client of two does. A router that hangs is waited for;
- its answer had begun, and the engine or the router that it came through was killed (SIGKILL, or SIGTERM for an
  engine, which does not drain): nobody can go on with half an answer. A router that ends by SIGTERM has promised to
  finish what runs, so an answer that it cuts is a failure.

Everything else is a failure: an error status, a connection that is refused or breaks, an answer that ends early or does
not come within a minute.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from loadtest.workloads.answers import StreamedAnswer, chat_body
from loadtest.workloads.conversations import ChatShape, DocumentShape, Mix, Session, SingleShape, Workload
from loadtest.workloads.text import TextMaker, load_tokenizer, tokenizer_folder
from router.tools.chaos.fleet import MODEL, ChaosFleet

USERS = 12
TIMEOUT_S = 60.0
LEAVING_SHARE = 0.05
"""Requests whose client leaves in the middle of them."""
LEAVES_S = (0.0, 0.3)
REPLICA_HEADER = "x-warmroute-replica"
_PAUSE_S = (0.0, 0.2)
_MIX = Mix(
    chat_shape=ChatShape(turns=(2, 5), user_tokens=(16, 96), answer_tokens=(8, 48), think_s=_PAUSE_S),
    document_shape=DocumentShape(document_tokens=(300, 700), answer_tokens=(8, 40), think_s=_PAUSE_S),
    single_shape=SingleShape(prompt_tokens=(100, 500), answer_tokens=(8, 40)),
)


@dataclass(slots=True)
class Attempt:
    """One try at one router.

    Attributes:
        began_s: `time.monotonic()`.
        replica: Who answered, once the answer began.
        request_id: What the router calls it, once the answer began.
        error: What went wrong; empty when it was answered whole.
        answer: As far as it came.
    """

    router: int
    began_s: float
    status: int = 0
    replica: str = ""
    request_id: str = ""
    error: str = ""
    answer: StreamedAnswer = field(default_factory=StreamedAnswer)

    @property
    def answer_began(self) -> bool:
        """Whether the client has bytes of it."""
        return self.status == 200


@dataclass(slots=True)
class Tally:
    """Counts of a run.

    Attributes:
        requests: That came to an end.
        excused: Not answered whole, and nobody could: by cause.
        elsewhere: Attempts that went to the other router.
        failures: In words.
        left: Requests whose client left.
        slowest_s: The longest wait for a whole answer.
    """

    requests: int = 0
    excused: Counter[str] = field(default_factory=Counter)
    elsewhere: int = 0
    left: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


Answered = Callable[[Session, int, Attempt], None]
Cut = Callable[[Attempt, str], None]


class Traffic:
    """A fixed number of users, each with one request at a time, until `stop`."""

    def __init__(
        self,
        fleet: ChaosFleet,
        client: aiohttp.ClientSession,
        seed: int,
        on_answered: Answered | None = None,
        on_cut: Cut | None = None,
    ) -> None:
        """Describe it.

        Args:
            on_answered: Called with the session, the turn's number and the attempt that was answered whole.
            on_cut: Called with the attempt whose answer somebody's death has cut, and the cause.
        """
        self.tally = Tally()
        self._on_answered = on_answered
        self._on_cut = on_cut
        self._fleet = fleet
        self._client = client
        self._rng = random.Random(f"{seed}/traffic")
        self._workload = Workload(_MIX, TextMaker(load_tokenizer(tokenizer_folder())), seed)
        self._numbers: Iterator[int] = itertools.count()
        self._flowing = asyncio.Event()
        self._busy = 0
        self._idle = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let the users begin."""
        self._flowing.set()
        self._tasks = [asyncio.create_task(self._user(number)) for number in range(USERS)]

    def resume(self) -> None:
        """Go on after `pause`."""
        self._flowing.set()

    async def pause(self) -> None:
        """Send nothing more, and wait for what runs."""
        self._flowing.clear()
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def stop(self) -> None:
        """End at once.

        Raises:
            Exception: A fault of the clients themselves.
        """
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _user(self, number: int) -> None:
        rng = random.Random(f"{self._workload.seed}/user/{number}")
        while True:
            await self._hold(self._workload.session(next(self._numbers)), rng)

    async def _hold(self, session: Session, rng: random.Random) -> None:
        answers: list[str] = []
        for number, turn in enumerate(session.turns):
            await asyncio.sleep(turn.think_s)
            await self._flowing.wait()
            messages = session.messages(number, answers if session.remembers else [])
            body = chat_body(MODEL, messages, turn.answer_tokens)
            if rng.random() < 0.5:
                body = {name: value for name, value in body.items() if not name.startswith("stream")}
            self._busy += 1
            router, leaves_s = rng.randrange(len(self._fleet.routers)), rng.uniform(*LEAVES_S)
            leaves = rng.random() < LEAVING_SHARE
            try:
                async with asyncio.timeout(leaves_s if leaves else None):
                    answered = await self._ask(body, router)
            except TimeoutError:
                answered = None
                self.tally.left += 1
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()
            if answered is None:
                return
            if self._on_answered is not None:
                self._on_answered(session, number, answered)
            answers.append(answered.answer.text)

    async def _ask(self, body: dict[str, Any], router: int) -> Attempt | None:
        """Send one request, to another router where one is out; return what was answered whole, or None."""
        tally, began_s = self.tally, time.monotonic()
        excuse = ""
        while time.monotonic() - began_s < TIMEOUT_S:
            attempt = Attempt(router, time.monotonic())
            await self._try(attempt, body)
            if not attempt.error:
                tally.requests += 1
                tally.slowest_s = max(tally.slowest_s, time.monotonic() - began_s)
                return attempt
            router_out = self._fleet.outages.touched(f"router-{attempt.router}", attempt.began_s)
            if router_out and not attempt.answer_began:
                tally.elsewhere += 1
                router = (router + 1) % len(self._fleet.routers)
                await asyncio.sleep(0.05)
                continue
            excuse = self._excuse(attempt)
            break
        tally.requests += 1
        if excuse:
            tally.excused[excuse] += 1
            if self._on_cut is not None:
                self._on_cut(attempt, excuse)
        else:
            shown = f"router-{attempt.router} {attempt.replica} after {time.monotonic() - began_s:.1f} s"
            kind = "stream" if "stream" in body else "whole"
            tally.failures.append(f"{time.strftime('%H:%M:%S')} {shown} ({kind}): {attempt.error}")
        return None

    def _excuse(self, attempt: Attempt) -> str:
        """Return whose death took an answer that had begun; empty: nobody's."""
        if not attempt.answer_began:
            return ""
        outages = self._fleet.outages
        if outages.touched(f"router-{attempt.router}", attempt.began_s, killed=True):
            return "router_killed"
        engine = attempt.replica.replace("r", "engine-", 1)
        return "engine_killed" if outages.touched(engine, attempt.began_s) else ""

    async def _try(self, attempt: Attempt, body: dict[str, Any]) -> None:
        url = self._fleet.router_urls[attempt.router] + "/v1/chat/completions"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        headers = {"content-type": "application/json"}
        try:
            async with self._client.post(url, data=orjson.dumps(body), headers=headers, timeout=timeout) as response:
                attempt.status = response.status
                attempt.replica = response.headers.get(REPLICA_HEADER, "")
                attempt.request_id = response.headers.get("x-request-id", "")
                answer = attempt.answer
                if response.status != 200:
                    attempt.error = f"HTTP {response.status}: {(await response.text())[:300]}"
                elif "stream" in body:
                    async for line in response.content:
                        answer.feed(line)
                    attempt.error = answer.error or ("" if answer.done else "the stream ended early")
                elif not answer.take_whole(await response.read()):
                    attempt.error = "the answer is not JSON"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            attempt.error = f"{type(error).__name__}: {error}"
