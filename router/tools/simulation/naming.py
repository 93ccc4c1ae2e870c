"""Sessions of the workload package without their text: pieces of known length instead of words.

A workload asks a maker for texts; this one gives tags, and what a prompt is made of is read back from its messages. So
the demo, the load tests and the simulator have one definition of their traffic.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from loadtest.workloads.conversations import Session as Spoken
from router.tools.simulation.requests import Session, Turn

Piece = tuple[int, int]
"""A stretch of tokens: who it is (equal means the same tokens), and how many."""

_TAG = re.compile(r"<(\d+):(\d+)>")
HEADER_TOKENS, END_TOKENS = 3, 2
"""What a chat template puts around a message: its role, its end."""
_HEADERS = {"system": 1, "user": 2, "assistant": 3}
_END = 4
_FIRST_FREE = 16


class TagMaker:
    """Makes a tag instead of a text."""

    def make(self, tokens: int, rng: random.Random) -> str:
        """Return a tag that stands for this many tokens."""
        return f"<{rng.getrandbits(60) + _FIRST_FREE}:{tokens}>" if tokens else ""


class BlockNames:
    """Names whole blocks by what is in them and before them; names are 0, 1, 2... in the order of appearance."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._names: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}

    def chain(self, pieces: Sequence[Piece]) -> list[int]:
        """Return the names of the whole blocks of a sequence of pieces."""
        size, names = self.block_tokens, self._names
        chain: list[int] = []
        inside: list[tuple[int, int, int]] = []
        free, name = size, -1
        for piece, length in pieces:
            offset = 0
            while length - offset >= free:
                inside.append((piece, offset, free))
                name = names.setdefault((name, tuple(inside)), len(names))
                chain.append(name)
                offset += free
                inside, free = [], size
            if offset < length:
                inside.append((piece, offset, length - offset))
                free -= length - offset
        return chain


def named(spoken: Spoken, start_s: float, names: BlockNames, rng: random.Random) -> Session:
    """Return a session of the workload as the simulator has it.

    Args:
        rng: Gives the answers their identity.
    """
    answers = [TagMaker().make(turn.answer_tokens, rng) for turn in spoken.turns]
    turns = []
    for index, said in enumerate(spoken.turns):
        prompt = _pieces(spoken.messages(index, answers[:index]))
        tokens = sum(length for _, length in prompt)
        whole = tokens // names.block_tokens
        chain = names.chain([*prompt, *_tags(answers[index])])
        turns.append(Turn(tokens, said.answer_tokens, tuple(chain[:whole]), tuple(chain[whole:]), said.think_s))
    return Session(start_s, tuple(turns))


def _pieces(messages: Sequence[dict[str, str]]) -> list[Piece]:
    pieces: list[Piece] = []
    for message in messages:
        pieces += [(_HEADERS[message["role"]], HEADER_TOKENS), *_tags(message["content"]), (_END, END_TOKENS)]
    return [*pieces, (_HEADERS["assistant"], HEADER_TOKENS)]


def _tags(text: str) -> list[Piece]:
    return [(int(piece), int(tokens)) for piece, tokens in _TAG.findall(text)]
