"""Other routers as rows of the table: rules, published and tuned settings, and what they see.

They are given more than any router has: what each engine's cache holds at this moment and how much it has yet to
compute, to the token. So a comparison with them is never won by their lack of knowledge. The approximate ones are as
their projects are: they know what they sent where, and never hear of evictions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from router.tools.simulation.engine import Engine
from router.tools.simulation.peer_rules import (
    Aibrix,
    Asked,
    Dynamo,
    KubeAi,
    LlmD,
    Look,
    NoHitLru,
    PeerRule,
    Sglang,
    Sticky,
    TokenCost,
)
from router.tools.simulation.requests import Job

LLM_D_MEMORY_BLOCKS = 31_250
"""What llm-d's approximate prefix scorer remembers for each server."""
UNBOUNDED_BLOCKS = 2**40


@dataclass(frozen=True, slots=True)
class Peer:
    """A row of the table.

    Attributes:
        rule: Makes the rule, which may keep state.
        memory_blocks: It does not see caches but remembers this many blocks of what it sent to each replica, and never
            hears of evictions; None: it sees the caches.
        tuned: Its settings are not the published ones but those that did best on generated traffic: see
            docs/placement-rules.md.
    """

    rule: Callable[[], PeerRule]
    memory_blocks: int | None = None
    tuned: bool = False


PEERS: dict[str, Peer] = {
    "llm-d": Peer(LlmD),
    "llm-d-no-hit-lru": Peer(lambda: NoHitLru(LlmD())),
    "llm-d-approximate": Peer(LlmD, LLM_D_MEMORY_BLOCKS),
    "llm-d-sticky": Peer(Sticky),
    "dynamo": Peer(TokenCost),
    "dynamo-approximate": Peer(TokenCost, UNBOUNDED_BLOCKS),
    "dynamo-credits": Peer(Dynamo),
    "price-8": Peer(lambda: TokenCost(8.0)),
    "price-backlog": Peer(lambda: TokenCost(1.0, 1.0, 9.0)),
    "sglang": Peer(Sglang, UNBOUNDED_BLOCKS),
    "aibrix": Peer(Aibrix, UNBOUNDED_BLOCKS),
    "kubeai": Peer(KubeAi),
    "llm-d-tuned": Peer(lambda: LlmD(prefix=6.0), tuned=True),
    "llm-d-sticky-tuned": Peer(lambda: Sticky(budget_s=0.5), tuned=True),
    "dynamo-tuned": Peer(lambda: Dynamo(scale=16.0), tuned=True),
    "sglang-tuned": Peer(lambda: Sglang(balance_absolute=8, balance_relative=1.1), UNBOUNDED_BLOCKS, tuned=True),
    "aibrix-tuned": Peer(lambda: Aibrix(imbalance=16, deviations=2.0), UNBOUNDED_BLOCKS, tuned=True),
    "kubeai-tuned": Peer(lambda: KubeAi(prefix_characters=8_000), tuned=True),
}
"""By the name that `--policy` takes."""


class KnowsLoad:
    """Runs a peer's rule on the engines' own figures.

    Attributes:
        engines: Those that may take requests.
    """

    def __init__(self, peer: Peer) -> None:
        self.engines: dict[int, Engine] = {}
        self._rule = peer.rule()
        self._memory_blocks = peer.memory_blocks
        self._memories: dict[int, OrderedDict[int, None]] = {}

    def joined(self, replica: int, engine: Engine) -> None:
        """See `Rule`."""
        self.engines[replica] = engine

    def left(self, replica: int) -> None:
        """See `Rule`."""
        del self.engines[replica]
        self._memories.pop(replica, None)

    def place(self, job: Job) -> int:
        """See `Rule`."""
        turn, tokens = job.turn, job.turn.prompt_tokens
        looks, block_tokens = [], 1
        for replica, engine in self.engines.items():
            block_tokens = engine.shape.block_tokens
            held = min(tokens, self._held_blocks(replica, engine, turn.blocks) * block_tokens)
            looks.append(
                Look(
                    replica,
                    held / tokens,
                    max(1, tokens - held),
                    engine.remaining_tokens(),
                    engine.running,
                    engine.shape.prefill_tokens_per_s,
                    engine.used_share() * engine.shape.num_blocks * block_tokens,
                )
            )
        chosen = self._rule(looks, Asked(tokens, turn.blocks, block_tokens)).replica
        if self._memory_blocks is not None:
            self._remember(chosen, turn.blocks, self._memory_blocks)
        return chosen

    def _held_blocks(self, replica: int, engine: Engine, blocks: Sequence[int]) -> int:
        if self._memory_blocks is None:
            return engine.held_blocks(blocks)
        memory = self._memories.setdefault(replica, OrderedDict())
        return next((depth for depth, block in enumerate(blocks) if block not in memory), len(blocks))

    def _remember(self, replica: int, blocks: Sequence[int], most: int) -> None:
        memory = self._memories.setdefault(replica, OrderedDict())
        for block in reversed(blocks):
            memory[block] = None
            memory.move_to_end(block)
        while len(memory) > most:
            memory.popitem(last=False)

    def stored(self, replica: int, blocks: Sequence[int]) -> None:
        """See `Rule`: it looks for itself."""

    def removed(self, replica: int, blocks: Iterable[int]) -> None:
        """See `Rule`: it looks for itself."""

    def first_token(self, job: Job) -> None:
        """See `Rule`: it looks for itself."""

    def finished(self, job: Job) -> None:
        """See `Rule`: it looks for itself."""

    def lost(self, job: Job) -> None:
        """See `Rule`: it looks for itself."""
