"""Generated traffic by name, each with a fleet that it brings near its limit (but for `idle`).

What sessions are made of is the workload package's; here stand sizes as in production, arrivals, and what happens to
the fleet. All come from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from loadtest.workloads.conversations import (
    AgentShape,
    ChatShape,
    DocumentShape,
    GroupShape,
    Mix,
    SingleShape,
    Stamp,
    Workload,
)
from loadtest.workloads.presets import LLM_D, LLM_D_STAGES, NOTHING
from loadtest.workloads.schedule import Stage, arrival_times
from router.tools.simulation.naming import BlockNames, TagMaker, named
from router.tools.simulation.requests import Session
from router.tools.simulation.run import Change

CHAT = ChatShape(
    systems=8, system_tokens=1_200, turns=(3, 12), user_tokens=(40, 600), answer_tokens=(80, 500), think_s=(5.0, 40.0)
)
DOCUMENT = DocumentShape(
    window=16,
    documents=3,
    document_tokens=(6_000, 24_000),
    questions=(2, 6),
    question_tokens=(30, 120),
    answer_tokens=(60, 300),
    think_s=(5.0, 30.0),
)
SINGLE = SingleShape(prompt_tokens=(500, 6_000), answer_tokens=(50, 300))
AGENT = AgentShape(
    agents=6,
    tools_tokens=4_000,
    task_tokens=(100, 800),
    steps=(6, 20),
    answer_tokens=(60, 250),
    result_tokens=(100, 3_000),
    work_s=(0.5, 4.0),
)
GROUP = GroupShape(groups=40, prompts=50, system_tokens=3_000, question_tokens=400, answer_tokens=150)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Traffic and fleet.

    Attributes:
        mix: What sessions are.
        stages: Arrivals, as a Poisson process of changing rate.
        replicas: Engines.
        cache_tokens: Of each engine.
        speeds: Prompt tokens a second; replicas take them in turn.
        changes: Who is lost or joins.
        crowds: (when, sessions, seconds): that many equal prompts within that time.
        crowd_tokens: Their length.
    """

    summary: str
    mix: Mix
    stages: Sequence[Stage]
    replicas: int = 8
    cache_tokens: int = 160_000
    speeds: Sequence[float] = (8_000.0,)
    changes: Sequence[Change] = ()
    crowds: Sequence[tuple[float, int, float]] = field(default=())
    crowd_tokens: int = 8_000


_CHATS = Scenario("conversations of many turns", replace(NOTHING, chat=1, chat_shape=CHAT), [Stage(4.5, 200)])
SCENARIOS: dict[str, Scenario] = {
    "llm-d": Scenario(
        "llm-d's own benchmark: 150 groups of 5 prompts, arrivals in stages",
        replace(NOTHING, group=1, group_shape=LLM_D),
        LLM_D_STAGES,
        cache_tokens=307_328,
    ),
    "chat": _CHATS,
    "agents": Scenario("agents with tools", replace(NOTHING, agent=1, agent_shape=AGENT), [Stage(0.8, 240)]),
    "documents": Scenario(
        "questions about documents", replace(NOTHING, document=1, document_shape=DOCUMENT), [Stage(2.2, 200)]
    ),
    "stamp-first": Scenario(
        "groups whose prompts begin with the time: nothing is shared",
        replace(NOTHING, group=1, group_shape=replace(GROUP, stamp=Stamp.FIRST)),
        [Stage(14, 120)],
    ),
    "stamp-last": Scenario(
        "groups whose system prompts end with the time: nearly all is shared",
        replace(NOTHING, group=1, group_shape=replace(GROUP, stamp=Stamp.LAST)),
        [Stage(60, 90)],
    ),
    "no-reuse": Scenario(
        "prompts that share nothing", replace(NOTHING, single=1, single_shape=SINGLE), [Stage(14, 150)]
    ),
    "idle": replace(_CHATS, summary="few conversations on a large fleet", stages=[Stage(0.15, 600)]),
    "mixed": Scenario(
        "a bit of everything",
        Mix(
            chat=0.5,
            document=0.15,
            single=0.15,
            agent=0.2,
            chat_shape=CHAT,
            document_shape=DOCUMENT,
            single_shape=SINGLE,
            agent_shape=AGENT,
        ),
        [Stage(2.2, 240)],
    ),
    "bursts": replace(
        _CHATS,
        summary="conversations, and 200 equal prompts at once now and then",
        stages=[Stage(3.2, 220)],
        crowds=[(40.0, 200, 0.05), (110.0, 200, 0.05), (180.0, 200, 0.05)],
    ),
    "flash-crowd": replace(
        _CHATS,
        summary="conversations, and a crowd that asks about one long text for 40 s",
        stages=[Stage(3.2, 220)],
        crowds=[(80.0, 800, 40.0)],
        crowd_tokens=12_000,
    ),
    "loss": replace(
        _CHATS,
        summary="a replica is lost, another joins later",
        stages=[Stage(3.6, 220)],
        changes=[Change(80.0, 3, joins=False), Change(140.0, 8, joins=True)],
    ),
    "scale-up": replace(
        _CHATS,
        summary="two replicas join a fleet of six under load",
        stages=[Stage(3.6, 220)],
        replicas=6,
        changes=[Change(90.0, 6, joins=True), Change(120.0, 7, joins=True)],
    ),
    "mixed-speeds": replace(
        _CHATS, summary="half of the replicas are half as fast", stages=[Stage(3.2, 220)], speeds=(8_000.0, 4_000.0)
    ),
}
"""By the name that `--workload` takes."""


def sessions_of(scenario: Scenario, block_tokens: int, speed: float, seed: int) -> list[Session]:
    """Return a scenario's sessions in the order of their start.

    Args:
        speed: Over 0; at 2 sessions come twice as fast.
    """
    workload = Workload(scenario.mix, TagMaker(), seed)
    names = BlockNames(block_tokens)
    rng = random.Random(f"{seed}/simulation")
    sessions = [
        named(workload.session(index), start_s / speed, names, rng)
        for index, start_s in enumerate(arrival_times(scenario.stages, rng))
    ]
    for number, (when_s, count, seconds) in enumerate(scenario.crowds):
        sessions += _crowd(
            scenario, names, seed + number, [(when_s + rng.random() * seconds) / speed for _ in range(count)]
        )
    return sorted(sessions, key=lambda session: session.start_s)


def _crowd(scenario: Scenario, names: BlockNames, seed: int, starts: Sequence[float]) -> Iterator[Session]:
    """One long prompt, asked by everybody."""
    single = SingleShape(prompt_tokens=(scenario.crowd_tokens,) * 2, answer_tokens=(100, 100))
    spoken = Workload(replace(NOTHING, single=1, single_shape=single), TagMaker(), seed).session(0)
    rng = random.Random(f"{seed}/crowd")
    for start_s in starts:
        yield named(spoken, start_s, names, rng)
