"""Which traffic is sent: a workload's sessions by its stages or in a closed loop, or a trace's at its own times.

What is sent is a function of the description alone. Workers of a distributed test each make their share of it, so that
any number of them sends the same sessions at the same times.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.workloads.conversations import Session, Workload
from loadtest.workloads.mooncake import BLOCK_TOKENS, read_requests, recorded_block_tokens
from loadtest.workloads.presets import PRESETS
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.replay import Replay
from loadtest.workloads.schedule import Lane, Stage, arrival_times, closed_loop
from loadtest.workloads.text import TextMaker, load_tokenizer
from router.errors import ConfigurationError, Problem

TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Share:
    """The part that one worker makes: each `of`-th, beginning with `number` (0 to of - 1)."""

    number: int = 0
    of: int = 1

    def has(self, index: int) -> bool:
        """Tell whether something of this index is this worker's."""
        return index % self.of == self.number


ALL = Share()


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
        own_stages: Of arrivals, instead of the preset's.
    """

    workload: str
    seed: int = 1
    rate_scale: float = 1.0
    users: int = 0
    sessions: int = 200
    trace: Path | None = None
    trace_s: float = 600.0
    shrink: int = 1
    own_stages: tuple[Stage, ...] = ()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Of arrivals; none for closed loops and traces."""
        if self.users or self.trace is not None:
            return ()
        return tuple(stage.times(self.rate_scale) for stage in self.own_stages or PRESETS[self.workload].stages)

    def maker(self, tokenizer: Path) -> TextMaker:
        """Return what makes texts of exact lengths by this tokenizer.

        Raises:
            ConfigurationError: The tokenizer can't be used.
        """
        try:
            return TextMaker(load_tokenizer(tokenizer))
        except (FileNotFoundError, ValueError) as error:
            raise ConfigurationError([Problem("--tokenizer", str(error), "a model's folder")]) from None

    def make_sessions(self, tokenizer: Path, share: Share = ALL) -> Iterator[Session]:
        """Make a workload's sessions without end, in order."""
        workload = Workload(PRESETS[self.workload].mix, self.maker(tokenizer), self.seed)
        return (workload.session(index) for index in itertools.count(share.number, share.of))

    def lanes(self, tokenizer: Path, share: Share = ALL) -> list[Lane[Session]]:
        """Make all sessions of a share.

        Raises:
            ConfigurationError: The tokenizer or the trace can't be used.
        """
        if self.trace is not None:
            return self._replay(tokenizer, self.trace, share)
        sessions = self.make_sessions(tokenizer, share)
        if self.users:
            count = len(range(share.number, self.sessions, share.of))
            users = len(range(share.number, self.users, share.of))
            return closed_loop(list(itertools.islice(sessions, count)), users, ramp_s=self.users / 30)
        times = arrival_times(self.stages, random.Random(f"{self.seed}/arrivals"))
        own = itertools.islice(times, share.number, None, share.of)
        return [Lane(start_s, iter((session,))) for start_s, session in zip(own, sessions, strict=False)]

    def _replay(self, tokenizer: Path, trace: Path, share: Share) -> list[Lane[Session]]:
        maker = self.maker(tokenizer)
        block_tokens = recorded_block_tokens(trace) or BLOCK_TOKENS
        requests = read_requests(trace, block_tokens)
        begin_s = requests[0].at_s
        kept = itertools.takewhile(lambda request: request.at_s - begin_s < self.trace_s, requests)
        try:
            around = len(ChatText.load(tokenizer).token_ids([[{"role": "user", "content": ""}]])[0])
        except FileNotFoundError:
            around = 0  # without a template prompts are longer than the trace's by what it adds
        try:
            replay = Replay(maker, self.seed, block_tokens, around, self.shrink)
        except ValueError as error:
            raise ConfigurationError([Problem("--shrink", str(error), "a divisor")]) from None
        return [
            Lane((request.at_s - begin_s) / self.rate_scale, iter((replay.session(number, request),)))
            for number, request in enumerate(kept)
            if share.has(number)
        ]

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
            "stages": ",".join(map(str, self.own_stages)) or None,
        }
