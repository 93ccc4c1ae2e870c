"""What users say: conversations, questions about shared documents, and prompts that share nothing.

A workload is a function from an index to a session: session i is the same whoever asks for it and in whatever order, so
workers of a distributed test make their own share, and two runs with one seed send the same prompts.

- chat: a few system prompts are shared by all users; each turn sends the whole history (reuse within a conversation,
  and of the system prompt between them).
- document: a text that several readers put in front of their questions; a question does not carry the ones before it.
- single: a prompt that shares nothing with any other: what a prefix cache can't help.
- agent: one task, worked at in many steps. Each sends the whole transcript, which grows by the answer and by what the
  tools gave back; the long system prompt with the tools is shared by all agents of a kind.
- group: few prompts of a group, each a long system prompt of the group's and one of its questions (few-shot examples,
  evaluations). A time stamp before the system prompt leaves nothing to share, one after it leaves nearly all.
- trace: a request of a recorded trace (replay.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

Range = tuple[int, int]
SecondsRange = tuple[float, float]


class Kind(StrEnum):
    """The class of a session; each has a reuse of its own."""

    CHAT = "chat"
    DOCUMENT = "document"
    SINGLE = "single"
    AGENT = "agent"
    GROUP = "group"
    TRACE = "trace"


class Stamp(StrEnum):
    """Where a group's prompt carries the time, which no two of them share."""

    NONE = "none"
    FIRST = "first"
    LAST = "last"


class Maker(Protocol):
    """Makes texts: of exact token lengths (`TextMaker`), or stand-ins of them in a simulation."""

    def make(self, tokens: int, rng: random.Random) -> str:
        """Make a text of exactly this many tokens, 0 or more."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session.

    Attributes:
        text: What the user says.
        answer_tokens: How many tokens the engine is asked for.
        think_s: Pause after the answer before, in seconds; 0 for the first turn.
    """

    text: str
    answer_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """One user's turns, in order.

    Attributes:
        session_id: Unique within the workload.
        kind: Its class.
        system: The system prompt; empty: none.
        turns: At least one.
        remembers: Whether a turn carries the turns and answers before it.
    """

    session_id: str
    kind: Kind
    system: str
    turns: tuple[Turn, ...]
    remembers: bool

    def messages(self, turn: int, answers: Sequence[str]) -> list[dict[str, str]]:
        """Return the messages of one turn, given the engine's answers to the turns before it."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        if self.remembers:
            for earlier, answer in zip(self.turns[:turn], answers, strict=True):
                messages.append({"role": "user", "content": earlier.text})
                messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": self.turns[turn].text})
        return messages


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Conversations. Ranges are inclusive; lengths are tokens."""

    systems: int = 4
    system_tokens: int = 192
    turns: Range = (4, 8)
    user_tokens: Range = (32, 128)
    answer_tokens: Range = (24, 48)
    think_s: SecondsRange = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class DocumentShape:
    """Questions about documents. In each `window` of sessions, `documents` documents are read."""

    window: int = 16
    documents: int = 2
    document_tokens: Range = (900, 1_500)
    questions: Range = (2, 4)
    question_tokens: Range = (16, 64)
    answer_tokens: Range = (16, 40)
    think_s: SecondsRange = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class SingleShape:
    """Prompts that share nothing."""

    prompt_tokens: Range = (200, 700)
    answer_tokens: Range = (16, 40)


@dataclass(frozen=True, slots=True)
class AgentShape:
    """Transcripts that grow by an answer and a tool's result each step. `agents` kinds of agents share their tools."""

    agents: int = 4
    tools_tokens: int = 800
    task_tokens: Range = (40, 160)
    steps: Range = (4, 10)
    answer_tokens: Range = (24, 64)
    result_tokens: Range = (40, 400)
    work_s: SecondsRange = (0.2, 1.5)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Prompts by group: `prompts` questions to each of `groups` system prompts."""

    groups: int = 12
    prompts: int = 5
    system_tokens: int = 600
    question_tokens: int = 120
    answer_tokens: int = 40
    stamp: Stamp = Stamp.NONE
    stamp_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Mix:
    """How often each kind of session comes (relative weights), and their shapes."""

    chat: float = 0.55
    document: float = 0.3
    single: float = 0.15
    agent: float = 0.0
    group: float = 0.0
    chat_shape: ChatShape = field(default_factory=ChatShape)
    document_shape: DocumentShape = field(default_factory=DocumentShape)
    single_shape: SingleShape = field(default_factory=SingleShape)
    agent_shape: AgentShape = field(default_factory=AgentShape)
    group_shape: GroupShape = field(default_factory=GroupShape)


MIXES = {
    "mixed": Mix(),
    "chat": Mix(chat=1, document=0, single=0),
    "documents": Mix(chat=0, document=1, single=0),
    "no-reuse": Mix(chat=0, document=0, single=1),
    "agents": Mix(chat=0, document=0, single=0, agent=1),
    "groups": Mix(chat=0, document=0, single=0, group=1),
}


class Workload:
    """Makes sessions by index."""

    def __init__(self, mix: Mix, maker: Maker, seed: int) -> None:
        self.mix = mix
        self.seed = seed
        self._maker = maker
        self._document = lru_cache(maxsize=64)(self._make_document)
        self._system = lru_cache(maxsize=64)(self._make_system)
        self._tools = lru_cache(maxsize=64)(self._make_tools)
        self._group_system = lru_cache(maxsize=256)(self._make_group_system)

    def session(self, index: int) -> Session:
        """Return session `index` (0 or more); the same for the same mix, tokenizer, seed and index."""
        rng = self._rng("session", index)
        mix = self.mix
        weights = {
            self._chat: mix.chat,
            self._questions: mix.document,
            self._single: mix.single,
            self._agent: mix.agent,
            self._group: mix.group,
        }
        return rng.choices(list(weights), weights=list(weights.values()))[0](index, rng)

    def _chat(self, index: int, rng: random.Random) -> Session:
        shape = self.mix.chat_shape
        turns = tuple(
            Turn(
                text=self._maker.make(rng.randint(*shape.user_tokens), rng),
                answer_tokens=rng.randint(*shape.answer_tokens),
                think_s=rng.uniform(*shape.think_s) if number else 0.0,
            )
            for number in range(rng.randint(*shape.turns))
        )
        return Session(f"chat-{index}", Kind.CHAT, self._system(rng.randrange(shape.systems)), turns, remembers=True)

    def _questions(self, index: int, rng: random.Random) -> Session:
        shape = self.mix.document_shape
        number = index // shape.window * shape.documents + rng.randrange(shape.documents)
        document = self._document(number)
        turns = tuple(
            Turn(
                text=f"{document}\n\n{self._maker.make(rng.randint(*shape.question_tokens), rng)}",
                answer_tokens=rng.randint(*shape.answer_tokens),
                think_s=rng.uniform(*shape.think_s) if question else 0.0,
            )
            for question in range(rng.randint(*shape.questions))
        )
        return Session(f"document-{number}-{index}", Kind.DOCUMENT, "", turns, remembers=False)

    def _single(self, index: int, rng: random.Random) -> Session:
        shape = self.mix.single_shape
        text = self._maker.make(rng.randint(*shape.prompt_tokens), rng)
        turn = Turn(text=text, answer_tokens=rng.randint(*shape.answer_tokens), think_s=0.0)
        return Session(f"single-{index}", Kind.SINGLE, "", (turn,), remembers=False)

    def _agent(self, index: int, rng: random.Random) -> Session:
        shape = self.mix.agent_shape
        turns = tuple(
            Turn(
                text=self._maker.make(rng.randint(*(shape.result_tokens if step else shape.task_tokens)), rng),
                answer_tokens=rng.randint(*shape.answer_tokens),
                think_s=rng.uniform(*shape.work_s) if step else 0.0,
            )
            for step in range(rng.randint(*shape.steps))
        )
        return Session(f"agent-{index}", Kind.AGENT, self._tools(rng.randrange(shape.agents)), turns, remembers=True)

    def _group(self, index: int, rng: random.Random) -> Session:
        shape = self.mix.group_shape
        group, prompt = rng.randrange(shape.groups), rng.randrange(shape.prompts)
        system = self._group_system(group)
        if shape.stamp is not Stamp.NONE:
            stamp = self._maker.make(shape.stamp_tokens, rng)
            system = f"{stamp}\n{system}" if shape.stamp is Stamp.FIRST else f"{system}\n{stamp}"
        question = self._maker.make(shape.question_tokens, self._rng("question", group * shape.prompts + prompt))
        turn = Turn(text=question, answer_tokens=shape.answer_tokens, think_s=0.0)
        return Session(f"group-{group}-{prompt}-{index}", Kind.GROUP, system, (turn,), remembers=False)

    def _make_tools(self, number: int) -> str:
        return self._maker.make(self.mix.agent_shape.tools_tokens, self._rng("tools", number))

    def _make_group_system(self, number: int) -> str:
        return self._maker.make(self.mix.group_shape.system_tokens, self._rng("group", number))

    def _make_document(self, number: int) -> str:
        rng = self._rng("document", number)
        return self._maker.make(rng.randint(*self.mix.document_shape.document_tokens), rng)

    def _make_system(self, number: int) -> str:
        return self._maker.make(self.mix.chat_shape.system_tokens, self._rng("system", number))

    def _rng(self, purpose: str, number: int) -> random.Random:
        # Seeded by text, which Python hashes with SHA-512: the same in every process and on every machine.
        return random.Random(f"{self.seed}/{purpose}/{number}")
