"""Traffic by name: what sessions are, and when they arrive.

Sizes come in two: as in production, for fleets of GPUs, and `-small`, for simulated engines on a laptop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.workloads.conversations import MIXES, ChatShape, GroupShape, Mix
from loadtest.workloads.schedule import Stage

NOTHING = Mix(chat=0, document=0, single=0)
LLM_D = GroupShape(groups=150, prompts=5, system_tokens=6_000, question_tokens=1_200, answer_tokens=1_000)
"""llm-d's own benchmark of its precise prefix-cache scorer: 150 groups of 5 prompts."""
LLM_D_RATES = (3.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
"""Its arrivals: Poisson, in steps from 3 to 60 requests a second."""
LLM_D_STAGE_S = 30.0
SMALLER = 8
"""How many times shorter llm-d's prompts and answers are in `llm-d-small`."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Traffic.

    Attributes:
        summary: What it is, in a line.
        mix: What sessions are.
        stages: When they arrive.
    """

    summary: str
    mix: Mix
    stages: Sequence[Stage]


LLM_D_STAGES = tuple(Stage(rate, LLM_D_STAGE_S) for rate in LLM_D_RATES)
LLM_D_SMALL = replace(
    LLM_D,
    system_tokens=LLM_D.system_tokens // SMALLER,
    question_tokens=LLM_D.question_tokens // SMALLER,
    answer_tokens=LLM_D.answer_tokens // SMALLER,
)


def steps(*rates: float, seconds: float) -> tuple[Stage, ...]:
    """Return stages of equal length, one a rate."""
    return tuple(Stage(rate, seconds) for rate in rates)


PRESETS = {
    "mixed": Preset("chats, documents and prompts without reuse", MIXES["mixed"], steps(1.0, 2.0, 3.0, seconds=12)),
    "chat": Preset("conversations of many turns", MIXES["chat"], steps(1.0, 1.5, 2.0, seconds=12)),
    "documents": Preset("questions about documents", MIXES["documents"], steps(1.0, 2.0, 3.0, seconds=12)),
    "agents": Preset("agents with tools and growing transcripts", MIXES["agents"], steps(0.5, 1.0, 1.5, seconds=12)),
    "few-shot": Preset("groups of prompts with long beginnings", MIXES["groups"], steps(4.0, 8.0, 12.0, seconds=12)),
    "system-prompts": Preset(
        "one question each, with a long system prompt that many share",
        replace(NOTHING, chat=1, chat_shape=ChatShape(systems=12, system_tokens=800, turns=(1, 1))),
        steps(4.0, 8.0, 12.0, seconds=12),
    ),
    "no-reuse": Preset("prompts that share nothing", MIXES["no-reuse"], steps(4.0, 8.0, 12.0, seconds=12)),
    "llm-d": Preset("llm-d's own benchmark", replace(NOTHING, group=1, group_shape=LLM_D), LLM_D_STAGES),
    "llm-d-small": Preset(
        f"llm-d's benchmark, {SMALLER} times shorter prompts and answers, a fifth of its arrivals",
        replace(NOTHING, group=1, group_shape=LLM_D_SMALL),
        tuple(Stage(rate / 5, 5.0) for rate in LLM_D_RATES),
    ),
}
