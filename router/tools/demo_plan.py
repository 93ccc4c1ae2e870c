"""What the demo runs: the fleets, the traffic, and the size of both.

The sizes make a small copy of a busy service that lasts half a minute a policy on two cores: the conversations and
documents in use at one time fit into the fleet's caches together but not into one replica's, as in production, where
the sum of HBM is bought for the sum of users. Time runs at its own speed: engines really take `decode_step_s` a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.workloads.conversations import ChatShape, DocumentShape, Mix, Session, SingleShape, Workload
from loadtest.workloads.rendering import ChatText
from loadtest.workloads.schedule import Lane, closed_loop
from loadtest.workloads.text import TextMaker
from router.errors import ConfigurationError, Problem
from router.tools.local_fleet import EngineOptions, LocalFleet


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One row of the table.

    Attributes:
        name: In the table.
        policy: The router's `placement.policy`.
        agents: Whether the replicas have agents; without, the router remembers what it sent where.
    """

    name: str
    policy: str
    agents: bool


RUNS = (
    PolicyRun("round-robin", "round-robin", agents=True),
    PolicyRun("least-loaded", "least-loaded", agents=True),
    PolicyRun("cost-approximate", "cost", agents=False),
    PolicyRun("cost", "cost", agents=True),
)

MIX = Mix(
    chat=0.65,
    document=0.25,
    single=0.1,
    chat_shape=ChatShape(
        systems=8, system_tokens=48, turns=(4, 8), user_tokens=(48, 160), answer_tokens=(24, 48), think_s=(0.5, 1.5)
    ),
    document_shape=DocumentShape(
        window=16,
        documents=4,
        document_tokens=(800, 1_600),
        questions=(3, 5),
        question_tokens=(16, 64),
        answer_tokens=(16, 40),
        think_s=(0.5, 1.5),
    ),
    single_shape=SingleShape(prompt_tokens=(200, 700), answer_tokens=(16, 40)),
)


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Sizes of one demo.

    Attributes:
        seed: Of all texts, lengths and pauses.
        sessions: Conversations, readers and single prompts together.
        users: How many of them at a time.
        replicas: Engines.
        num_blocks: Cache of each engine, in blocks of 16 tokens.
        router_port: Where the router listens; 0: any free port.
    """

    seed: int = 1
    sessions: int = 120
    users: int = 56
    replicas: int = 4
    num_blocks: int = 672
    router_port: int = 0

    @property
    def engine(self) -> EngineOptions:
        """Options of every engine."""
        return EngineOptions(num_blocks=self.num_blocks, prefill_tokens_per_s=8_000.0, decode_step_s=0.02)

    @property
    def fleet_blocks(self) -> int:
        """Blocks of all caches together."""
        return self.num_blocks * self.replicas

    def make_sessions(self, maker: TextMaker) -> list[Session]:
        """Return the same sessions for the same plan."""
        workload = Workload(MIX, maker, self.seed)
        return [workload.session(index) for index in range(self.sessions)]

    def check_room(self, sessions: Sequence[Session], text: ChatText) -> None:
        """Make sure that an engine's cache holds each conversation with its answers.

        Raises:
            ConfigurationError: One is longer: the engine would refuse it.
        """
        asked = [
            (session.messages(turn, [""] * turn), sum(each.answer_tokens for each in session.turns[: turn + 1]))
            for session in sessions
            for turn in ([len(session.turns) - 1] if session.remembers else range(len(session.turns)))
        ]
        prompts = text.token_ids([messages for messages, _ in asked])
        longest = max(len(prompt) + answers for prompt, (_, answers) in zip(prompts, asked, strict=True))
        needed = -(-longest // self.engine.block_size) + 1  # block 0 is a placeholder
        if self.num_blocks < needed:
            said = f"{self.num_blocks} blocks do not hold the longest conversation, {longest} tokens"
            raise ConfigurationError([Problem("--num-blocks", said, f"give {needed} or more")])

    def lanes(self, sessions: Sequence[Session]) -> list[Lane[Session]]:
        """Return the users; they come in one by one, 30 a second."""
        return closed_loop(sessions, self.users, ramp_s=self.users / 30)

    def fleet(self, run: PolicyRun) -> LocalFleet:
        """Return a fresh fleet for one row, not started yet."""
        options: dict[str, Any] = {"placement": {"policy": run.policy}, "log": {"level": "warning", "access": False}}
        return LocalFleet(self.engine, self.replicas, run.agents, options, router_port=self.router_port)
