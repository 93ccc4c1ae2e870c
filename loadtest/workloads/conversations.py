"""What users say: conversations, questions about shared documents, and prompts that share nothing.

A workload is a function from an index to a session: session i is the same whoever asks for it and in whatever order, so
workers of a distributed test make their own share, and two runs with one seed send the same prompts.

- chat: a few system prompts are shared by all users; each turn sends the whole history (reuse within a conversation,
  and of the system prompt between them).
- document: a text that several readers put in front of their questions; a question does not carry the ones before it.
- single: a prompt that shares nothing with any other: what a prefix cache can't help.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from loadtest.workloads.text import TextMaker

Range = tuple[int, int]
SecondsRange = tuple[float, float]


class Kind(StrEnum):
    """The class of a session; each has a reuse of its own."""

    CHAT = "chat"
    DOCUMENT = "document"
    SINGLE = "single"


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
class Mix:
    """How often each kind of session comes (relative weights), and their shapes."""

    chat: float = 0.55
    document: float = 0.3
    single: float = 0.15
    chat_shape: ChatShape = field(default_factory=ChatShape)
    document_shape: DocumentShape = field(default_factory=DocumentShape)
    single_shape: SingleShape = field(default_factory=SingleShape)


MIXES = {
    "mixed": Mix(),
    "chat": Mix(chat=1, document=0, single=0),
    "documents": Mix(chat=0, document=1, single=0),
    "no-reuse": Mix(chat=0, document=0, single=1),
}


class Workload:
    """Makes sessions by index."""

    def __init__(self, mix: Mix, maker: TextMaker, seed: int) -> None:
        self.mix = mix
        self.seed = seed
        self._maker = maker
        self._document = lru_cache(maxsize=64)(self._make_document)
        self._system = lru_cache(maxsize=64)(self._make_system)

    def session(self, index: int) -> Session:
        """Return session `index` (0 or more); the same for the same mix, tokenizer, seed and index."""
        rng = self._rng("session", index)
        weights = [self.mix.chat, self.mix.document, self.mix.single]
        kind = rng.choices([Kind.CHAT, Kind.DOCUMENT, Kind.SINGLE], weights=weights)[0]
        if kind is Kind.CHAT:
            return self._chat(index, rng)
        if kind is Kind.DOCUMENT:
            return self._questions(index, rng)
        return self._single(index, rng)

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

    def _make_document(self, number: int) -> str:
        rng = self._rng("document", number)
        return self._maker.make(rng.randint(*self.mix.document_shape.document_tokens), rng)

    def _make_system(self, number: int) -> str:
        return self._maker.make(self.mix.chat_shape.system_tokens, self._rng("system", number))

    def _rng(self, purpose: str, number: int) -> random.Random:
        # Seeded by text, which Python hashes with SHA-512: the same in every process and on every machine.
        return random.Random(f"{self.seed}/{purpose}/{number}")
