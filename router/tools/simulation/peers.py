"""The rules of other routers, with their published defaults.

They are given more than any router has: what each engine's cache holds at this moment and how much it has yet to
compute, to the token. So a comparison with them is never won by their lack of knowledge. Sources: the projects' own
documentation and papers; what each is called there stands at its function.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from router.tools.simulation.engine import Engine
from router.tools.simulation.requests import Job

RUNNING_TOKENS = 50.0
"""What a running request counts, in prefill tokens, where a rule adds it to the waiting ones."""


@dataclass(slots=True)
class Look:
    """What a rule sees of one replica, for one prompt.

    Attributes:
        held_share: Share of the prompt that its cache holds, 0 to 1.
        uncached_tokens: Prompt tokens that it would have to compute, 1 or more.
        remaining_tokens: Prompt tokens that it has yet to compute for others.
        running: Requests in it.
        prefill_tokens_per_s: Its speed.
    """

    replica: int
    held_share: float
    uncached_tokens: float
    remaining_tokens: float
    running: int
    prefill_tokens_per_s: float

    @property
    def cost(self) -> float:
        """Prompt tokens until this one is computed, and a little for each running request."""
        return self.remaining_tokens + self.uncached_tokens + RUNNING_TOKENS * self.running


PeerRule = Callable[[Sequence[Look]], Look]


def _cheapest(looks: Sequence[Look], price: float) -> Look:
    def cost(look: Look) -> float:
        return look.remaining_tokens + price * look.uncached_tokens + RUNNING_TOKENS * look.running

    return min(looks, key=cost)


def _spread(figures: Sequence[float]) -> list[float]:
    """Scale figures so that the lowest scores 1 and the highest 0; all score 1 when they are equal."""
    low, high = min(figures), max(figures)
    return [1.0] * len(figures) if high == low else [(high - figure) / (high - low) for figure in figures]


def llm_d(looks: Sequence[Look]) -> Look:
    """Weigh prefix 3, queue 2, active requests 2, each scaled over the candidates (llm-d's precise profile)."""
    queue = _spread([look.remaining_tokens for look in looks])
    active = _spread([look.running for look in looks])
    scores = [3 * look.held_share + 2 * q + 2 * a for look, q, a in zip(looks, queue, active, strict=True)]
    return looks[scores.index(max(scores))]


STICKY_SHARE = 0.8
STICKY_BUDGET_S = 2.0


def llm_d_sticky(looks: Sequence[Look]) -> Look:
    """Stay where 0.8 of the prompt is held, if that costs no more than 2 s over the cheapest (llm-d's newest)."""
    cheapest = min(looks, key=lambda look: look.cost)
    sticky = [
        look
        for look in looks
        if look.held_share >= STICKY_SHARE and look.cost - cheapest.cost <= STICKY_BUDGET_S * look.prefill_tokens_per_s
    ]
    return min(sticky, key=lambda look: (-look.held_share, look.cost)) if sticky else cheapest


def dynamo(looks: Sequence[Look]) -> Look:
    """Take the least tokens to compute, this prompt's among them (Dynamo's cost with overlap weight 1)."""
    return _cheapest(looks, 1.0)


def price_8(looks: Sequence[Look]) -> Look:
    """Take the least cost where a token to recompute costs 8: what a high overlap weight does."""
    return _cheapest(looks, 8.0)


def price_backlog(looks: Sequence[Look]) -> Look:
    """The same with price 1 + seconds of mean backlog, at most 9."""
    backlog_s = sum(look.remaining_tokens / look.prefill_tokens_per_s for look in looks) / len(looks)
    return _cheapest(looks, min(9.0, 1.0 + backlog_s))


BALANCE_ABSOLUTE, BALANCE_RELATIVE, CACHE_THRESHOLD = 64, 1.5, 0.3


def sglang(looks: Sequence[Look]) -> Look:
    """Take the longest prefix over 0.3, unless requests are out of balance by 64 and 1.5 times (cache_aware)."""
    most, least = max(look.running for look in looks), min(look.running for look in looks)
    lightest = min(looks, key=lambda look: look.running)
    if most - least > BALANCE_ABSOLUTE and most > BALANCE_RELATIVE * least:
        return lightest
    longest = max(looks, key=lambda look: look.held_share)
    return longest if longest.held_share > CACHE_THRESHOLD else lightest


AIBRIX_DEVIATIONS = 1.0


def aibrix(looks: Sequence[Look]) -> Look:
    """Take the longest prefix among replicas within one standard deviation of the mean load (prefix-cache)."""
    mean = sum(look.running for look in looks) / len(looks)
    deviation = (sum((look.running - mean) ** 2 for look in looks) / len(looks)) ** 0.5
    near = [look for look in looks if look.running <= mean + AIBRIX_DEVIATIONS * deviation]
    return min(near, key=lambda look: (-look.held_share, look.running))


class NoHitLru:
    """llm-d's, but a prompt that nobody holds goes to the replica that took such a one longest ago (no-hit-LRU)."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}

    def __call__(self, looks: Sequence[Look]) -> Look:
        """Choose."""
        if any(look.held_share > 0 for look in looks):
            return llm_d(looks)
        longest_ago = min(looks, key=lambda look: self._turns.get(look.replica, -1))
        self._turns[longest_ago.replica] = max(self._turns.values(), default=0) + 1
        return longest_ago


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
    """

    rule: Callable[[], PeerRule]
    memory_blocks: int | None = None


PEERS: dict[str, Peer] = {
    "llm-d": Peer(lambda: llm_d),
    "llm-d-no-hit-lru": Peer(NoHitLru),
    "llm-d-approximate": Peer(lambda: llm_d, LLM_D_MEMORY_BLOCKS),
    "llm-d-sticky": Peer(lambda: llm_d_sticky),
    "dynamo": Peer(lambda: dynamo),
    "dynamo-approximate": Peer(lambda: dynamo, UNBOUNDED_BLOCKS),
    "price-8": Peer(lambda: price_8),
    "price-backlog": Peer(lambda: price_backlog),
    "sglang": Peer(lambda: sglang, UNBOUNDED_BLOCKS),
    "aibrix": Peer(lambda: aibrix, UNBOUNDED_BLOCKS),
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
        looks = []
        for replica, engine in self.engines.items():
            held = min(tokens, self._held_blocks(replica, engine, turn.blocks) * engine.shape.block_tokens)
            looks.append(
                Look(
                    replica,
                    held / tokens,
                    max(1, tokens - held),
                    engine.remaining_tokens(),
                    engine.running,
                    engine.shape.prefill_tokens_per_s,
                )
            )
        chosen = self._rule(looks).replica
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
