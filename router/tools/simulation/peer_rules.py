"""The rules of other routers, each with its settings; `peers.py` has the table of published and tuned settings.

What each is called in its project stands at its class. Sources: the projects' own documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.scheduling.ring import OwnerRing


@dataclass(slots=True)
class Look:
    """What a rule sees of one replica, for one prompt.

    Attributes:
        held_share: Share of the prompt that its cache holds, 0 to 1.
        uncached_tokens: Prompt tokens that it would have to compute, 1 or more.
        remaining_tokens: Prompt tokens that it has yet to compute for others.
        running: Requests in it.
        prefill_tokens_per_s: Its speed.
        used_tokens: Tokens of its cache that requests hold by now.
    """

    replica: int
    held_share: float
    uncached_tokens: float
    remaining_tokens: float
    running: int
    prefill_tokens_per_s: float
    used_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The prompt. `blocks` are the names of its blocks, of `block_tokens` each."""

    prompt_tokens: int
    blocks: Sequence[int]
    block_tokens: int


PeerRule = Callable[[Sequence[Look], Asked], Look]


def _spread(figures: Sequence[float]) -> list[float]:
    """Scale figures so that the lowest scores 1 and the highest 0; all score 1 when they are equal."""
    low, high = min(figures), max(figures)
    return [1.0] * len(figures) if high == low else [(high - figure) / (high - low) for figure in figures]


@dataclass(frozen=True, slots=True)
class LlmD:
    """llm-d: weighted scores of prefix, queue and active requests, the latter two scaled over the candidates."""

    prefix: float = 3.0
    queue: float = 2.0
    active: float = 2.0

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""
        queue = _spread([look.remaining_tokens for look in looks])
        active = _spread([look.running for look in looks])
        scores = [
            self.prefix * look.held_share + self.queue * q + self.active * a
            for look, q, a in zip(looks, queue, active, strict=True)
        ]
        return looks[scores.index(max(scores))]


class NoHitLru:
    """llm-d's, but a prompt that nobody holds goes to the replica that took such a one longest ago (no-hit-LRU)."""

    def __init__(self, rule: LlmD) -> None:
        self._rule = rule
        self._turns: dict[int, int] = {}

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""
        if any(look.held_share > 0 for look in looks):
            return self._rule(looks, asked)
        longest_ago = min(looks, key=lambda look: self._turns.get(look.replica, -1))
        self._turns[longest_ago.replica] = max(self._turns.values(), default=0) + 1
        return longest_ago


@dataclass(frozen=True, slots=True)
class TokenCost:
    """The least cost in prefill tokens: what waits, `price` times what is not cached, and 50 a running request.

    The form in which published simulations have Dynamo's rule (price 1), and rules with a higher price.

    Attributes:
        price: Of a token to recompute.
        per_backlog_s: Added to the price for each second of mean backlog...
        price_max: ...up to this.
        running: What a running request counts.
    """

    price: float = 1.0
    per_backlog_s: float = 0.0
    price_max: float = math.inf
    running: float = 50.0

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""
        backlog_s = sum(look.remaining_tokens / look.prefill_tokens_per_s for look in looks) / len(looks)
        price = min(self.price_max, self.price + self.per_backlog_s * backlog_s)
        return min(
            looks,
            key=lambda look: look.remaining_tokens + price * look.uncached_tokens + self.running * look.running,
        )


@dataclass(frozen=True, slots=True)
class Sticky:
    """llm-d's newest: stay where `share` of the prompt is held, if that costs little more than the cheapest.

    Attributes:
        budget_s: How much more, in seconds.
    """

    share: float = 0.8
    budget_s: float = 2.0
    cost: TokenCost = TokenCost()

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""

        def cost(look: Look) -> float:
            return look.remaining_tokens + look.uncached_tokens + self.cost.running * look.running

        cheapest = min(looks, key=cost)
        sticky = [
            look
            for look in looks
            if look.held_share >= self.share
            and cost(look) - cost(cheapest) <= self.budget_s * look.prefill_tokens_per_s
        ]
        return min(sticky, key=lambda look: (-look.held_share, cost(look))) if sticky else cheapest


@dataclass(frozen=True, slots=True)
class Dynamo:
    """Dynamo's own formula, in tokens: `scale` times the prefill load less the overlap's credit, plus decode load.

    Attributes:
        scale: `--router-prefill-load-scale`.
        credit: `--router-kv-overlap-score-credit`.
        decay: `--router-kv-overlap-score-credit-decay`: credit falls as the prefill load exceeds the lightest one's,
            measured in prompts like this one.
    """

    scale: float = 1.0
    credit: float = 1.0
    decay: float = 0.0

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""
        least = min(look.remaining_tokens for look in looks)

        def cost(look: Look) -> float:
            excess = (look.remaining_tokens - least) / asked.prompt_tokens
            credit = self.credit / (1.0 + self.decay * excess)
            prefill = look.remaining_tokens + asked.prompt_tokens * (1.0 - credit * look.held_share)
            return self.scale * prefill + look.used_tokens

        return min(looks, key=cost)


@dataclass(frozen=True, slots=True)
class Sglang:
    """SGLang's cache_aware: the longest prefix if it is long enough, unless requests are out of balance."""

    cache_threshold: float = 0.3
    balance_absolute: float = 64
    balance_relative: float = 1.5

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""
        most, least = max(look.running for look in looks), min(look.running for look in looks)
        lightest = min(looks, key=lambda look: look.running)
        if most - least > self.balance_absolute and most > self.balance_relative * least:
            return lightest
        longest = max(looks, key=lambda look: look.held_share)
        return longest if longest.held_share > self.cache_threshold else lightest


@dataclass(frozen=True, slots=True)
class Aibrix:
    """AIBrix' prefix-cache: the longest prefix among replicas near the mean load, the lightest when out of balance.

    Attributes:
        imbalance: Running requests between the busiest and the idlest beyond which only load counts.
        deviations: How many standard deviations over the mean are near.
    """

    imbalance: float = 8
    deviations: float = 1.0

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""
        running = [look.running for look in looks]
        if max(running) - min(running) > self.imbalance:
            return min(looks, key=lambda look: look.running)
        mean = sum(running) / len(running)
        deviation = (sum((one - mean) ** 2 for one in running) / len(running)) ** 0.5
        near = [look for look in looks if look.running <= mean + self.deviations * deviation]
        return min(near, key=lambda look: (-look.held_share, look.running))


CHARACTERS_PER_TOKEN = 4


class KubeAi:
    """KubeAI's PrefixHash: consistent hashing with bounded loads (CHWBL) over the prompt's first characters.

    An xxHash ring with `replication` points a replica; a replica takes a request while its requests stay within
    `load_factor` times the mean, this one among them; else the next one on the ring does. Where none does, the owner.

    Args:
        prefix_characters: What is hashed. A simulation has no characters: it takes four for a token, and the first
            block where that is less.
    """

    def __init__(self, prefix_characters: int = 100, load_factor: float = 1.25, replication: int = 256) -> None:
        self._prefix_tokens = prefix_characters // CHARACTERS_PER_TOKEN
        self._load_factor = load_factor
        self._ring = OwnerRing((), replication)

    def __call__(self, looks: Sequence[Look], asked: Asked) -> Look:
        """Choose."""
        by_name = {str(look.replica): look for look in looks}
        if self._ring.names != by_name.keys():
            self._ring.set_names(by_name)
        if not asked.blocks:
            return min(looks, key=lambda look: look.running)
        depth = min(len(asked.blocks), max(1, self._prefix_tokens // asked.block_tokens))
        total = sum(look.running for look in looks)
        most = self._load_factor * (total + 1) / len(looks)
        order = [by_name[name] for name in self._ring.preference(asked.blocks[depth - 1])]
        return next((look for look in order if total == 0 or look.running + 1 <= most), order[0])
