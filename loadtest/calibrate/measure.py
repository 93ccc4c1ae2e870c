"""Asks an engine, with prompts of token ids: no tokenizer is needed, and lengths are exact.

Ids are drawn from a part of the vocabulary that every model has. No prompt begins as another does: nothing is cached.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import aiohttp
import orjson

from loadtest.workloads.answers import StreamedAnswer

TOKEN_IDS = (300, 4_000)
WARM_UP = 3
DECODE_PROMPT_TOKENS = 16
DECODE_TOKENS, LEFT_OUT = 48, 8
"""The first tokens of a batch are left out: others' prompts are computed meanwhile."""
TIMEOUT_S = 300.0


class AskError(Exception):
    """The engine did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the traffic that the model is held against."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Timed:
    """What came of one request, in seconds from its sending: to the first token, to the end, and each token."""

    ttft_s: float
    total_s: float
    tokens_s: Sequence[float]


class Asker:
    """Sends completions to one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, seed: int, key: str | None = None) -> None:
        self._session = session
        self._url = url.rstrip("/") + "/v1/completions"
        self._model = model
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._rng = random.Random(f"{seed}/calibrate")

    async def ask(self, prompt_tokens: int, output_tokens: int) -> Timed:
        """Send one request and wait for its last token.

        Raises:
            AskError: Anything but a whole answer came.
        """
        ids = [self._rng.randrange(*TOKEN_IDS) for _ in range(prompt_tokens)]
        body: dict[str, Any] = {"model": self._model, "prompt": ids, "max_tokens": output_tokens, "ignore_eos": True}
        body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        answer, tokens_s = StreamedAnswer(), []
        headers = {"content-type": "application/json", **self._headers}
        began_s = time.perf_counter()
        try:
            async with self._session.post(self._url, data=orjson.dumps(body), headers=headers) as response:
                if response.status != 200:
                    raise AskError(f"{self._url} answered {response.status}: {(await response.text())[:300]}")
                async for line in response.content:
                    before = len(answer.token_ids)
                    if answer.feed(line):
                        came = max(1, len(answer.token_ids) - before)
                        tokens_s += [time.perf_counter() - began_s] * came
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AskError(f"{self._url} did not answer: {type(error).__name__} {error}") from None
        if answer.error or not answer.done or not tokens_s:
            raise AskError(f"{self._url} did not answer whole: {answer.error or 'the stream ended early'}")
        return Timed(tokens_s[0], tokens_s[-1], tokens_s)


async def prefill(asker: Asker, lengths: Sequence[int], repeats: int) -> list[tuple[int, float]]:
    """Return the median TTFT of prompts alone, by length; lengths take turns, so that a busy moment strikes all."""
    found: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(WARM_UP):
        await asker.ask(max(lengths), 2)
    for _ in range(repeats):
        for length in lengths:
            found[length].append((await asker.ask(length, 1)).ttft_s)
    return [(length, median(times)) for length, times in found.items()]


async def decode(asker: Asker, batches: Sequence[int], repeats: int) -> list[tuple[int, float]]:
    """Return the median seconds a token of requests that run together, by how many run."""
    found: dict[int, list[float]] = {batch: [] for batch in batches}
    for _ in range(repeats):
        for batch in batches:
            asked = (asker.ask(DECODE_PROMPT_TOKENS, DECODE_TOKENS) for _ in range(batch))
            for timed in await asyncio.gather(*asked):
                steady = timed.tokens_s[LEFT_OUT:]
                found[batch].append((steady[-1] - steady[0]) / (len(steady) - 1))
    return [(batch, median(times)) for batch, times in found.items()]


def traffic(users: int, each: int, most_tokens: int, seed: int) -> list[list[Ask]]:
    """Return what each of some users asks, one after the other."""
    rng = random.Random(f"{seed}/held out")
    most = max(64, most_tokens // 2)
    return [[Ask(rng.randint(32, most), rng.randint(8, 48)) for _ in range(each)] for _ in range(users)]


async def held_out(asker: Asker, asked: Sequence[Sequence[Ask]], say: Callable[[str], None]) -> list[Timed]:
    """Send the traffic, all users at once; return what came, in no order."""
    say(f"measuring {sum(map(len, asked))} requests of {len(asked)} users that the model was not fitted to")

    async def user(requests: Sequence[Ask]) -> list[Timed]:
        return [await asker.ask(each.prompt_tokens, each.output_tokens) for each in requests]

    return [timed for found in await asyncio.gather(*map(user, asked)) for timed in found]
