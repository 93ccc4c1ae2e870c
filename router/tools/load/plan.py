"""Which traffic is sent, and how."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from loadtest.driver.client import HttpClient, connections
from loadtest.driver.driver import Driver, Sending
from loadtest.workloads.conversations import Session, Workload
from loadtest.workloads.mooncake import BLOCK_TOKENS, read_requests, recorded_block_tokens
from loadtest.workloads.presets import PRESETS
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.replay import Replay
from loadtest.workloads.schedule import Lane, Stage, closed_loop, staged_arrivals
from loadtest.workloads.text import TextMaker, load_tokenizer
from router.errors import ConfigurationError, Problem

REQUEST_TIMEOUT_S = 300.0
TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of traffic.

    Attributes:
        workload: A preset's name, or `trace`.
        seed: Of texts, lengths, pauses and arrivals.
        rate_scale: Arrivals are that many times the preset's, or the trace's.
        users: Over 0: a closed loop of that many, rather than arrivals.
        sessions: Of a closed loop.
        trace: Its file; None: none.
        trace_s: How much of it is replayed, in its own seconds.
        shrink: How many times shorter its prompts and answers are made.
    """

    workload: str
    seed: int = 1
    rate_scale: float = 1.0
    users: int = 0
    sessions: int = 200
    trace: Path | None = None
    trace_s: float = 600.0
    shrink: int = 1

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Of arrivals; none for closed loops and traces."""
        if self.users or self.trace is not None:
            return ()
        factor = self.rate_scale
        return tuple(
            Stage(
                stage.rate_per_s * factor,
                stage.duration_s,
                None if stage.end_rate_per_s is None else stage.end_rate_per_s * factor,
            )
            for stage in PRESETS[self.workload].stages
        )

    def lanes(self, tokenizer: Path) -> list[Lane[Session]]:
        """Make all sessions, with prompts of exact lengths by this tokenizer.

        Raises:
            ConfigurationError: The tokenizer or the trace can't be used.
        """
        try:
            maker = TextMaker(load_tokenizer(tokenizer))
        except (FileNotFoundError, ValueError) as error:
            raise ConfigurationError([Problem("--tokenizer", str(error), "a model's folder")]) from None
        if self.trace is not None:
            return self._replay(maker, tokenizer, self.trace)
        workload = Workload(PRESETS[self.workload].mix, maker, self.seed)
        sessions = (workload.session(index) for index in itertools.count())
        if self.users:
            made = list(itertools.islice(sessions, self.sessions))
            return closed_loop(made, self.users, ramp_s=self.users / 30)
        return list(staged_arrivals(sessions, self.stages, self.seed))

    def _replay(self, maker: TextMaker, tokenizer: Path, trace: Path) -> list[Lane[Session]]:
        block_tokens = recorded_block_tokens(trace) or BLOCK_TOKENS
        requests = read_requests(trace, block_tokens)
        begin_s = requests[0].at_s
        kept = [request for request in requests if request.at_s - begin_s < self.trace_s]
        try:
            around = len(ChatText.load(tokenizer).token_ids([[{"role": "user", "content": ""}]])[0])
        except FileNotFoundError:
            around = 0  # without a template prompts are longer than the trace's by what it adds
        try:
            lanes = Replay(maker, self.seed, block_tokens, around, self.shrink).lanes(kept)
            return [Lane(lane.start_s / self.rate_scale, lane.sessions) for lane in lanes]
        except ValueError as error:
            raise ConfigurationError([Problem("--shrink", str(error), "a divisor")]) from None

    def to_dict(self) -> dict[str, Any]:
        """Return what makes it what it is."""
        return {
            "workload": self.workload,
            "seed": self.seed,
            "rate scale": self.rate_scale,
            "users": self.users,
            "sessions": self.sessions if self.users else None,
            "trace": self.trace.name if self.trace else None,
            "trace seconds": self.trace_s if self.trace else None,
            "shrink": self.shrink,
        }


def send(
    url: str, sending: Sending, stages: tuple[Stage, ...], lanes: list[Lane[Session]], more: Mapping[str, str]
) -> Driver:
    """Send it all; return the driver with its records."""

    async def main() -> Driver:
        async with connections(REQUEST_TIMEOUT_S) as session:
            driver = Driver(HttpClient(session, url, more), sending, stages)
            await driver.run(lanes)
            return driver

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def credentials() -> dict[str, str]:
    """Return the header of OPENAI_API_KEY, when it is set."""
    key = os.environ.get("OPENAI_API_KEY")
    return {"authorization": f"Bearer {key}"} if key else {}
