"""The bound: how often one cache as large as all the fleet's caches together would hit, over the same requests.

No placement over separate caches of the same total size can hit much more, and in practice none does. It is judged
apart from the router: blocks are named by interning (block before, its tokens), not by any hash, so a fault in the
router's hashes or index can't hide here.

The rules are the engine's: only whole blocks hit; at most prompt - 1 tokens, as the last is always computed; what is
cached afterwards is the prompt and the answer without its last token, which has no KV; the deepest block of a request
is the first to be evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROOT = -1


class BlockNames:
    """Names whole blocks: two blocks have one name if and only if they and all blocks before them are equal."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._names: dict[tuple[int, tuple[int, ...]], int] = {}

    def __len__(self) -> int:
        """How many distinct blocks were named."""
        return len(self._names)

    def chain(self, token_ids: Sequence[int]) -> list[int]:
        """Return the names of the whole blocks of a sequence, first to last."""
        size = self.block_size
        names: list[int] = []
        name = ROOT
        for start in range(0, len(token_ids) - size + 1, size):
            key = (name, tuple(token_ids[start : start + size]))
            name = self._names.setdefault(key, len(self._names))
            names.append(name)
        return names


class PooledCache:
    """One LRU of blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Make an empty cache of `num_blocks` (1 or more) blocks of `block_size` (1 or more) tokens."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a cache needs at least one block of at least one token")
        self.num_blocks = num_blocks
        self.names = BlockNames(block_size)
        self.evicted_blocks = 0
        self._held: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def serve(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> int:
        """Take one request: return its cached tokens, then cache its prompt and answer."""
        size = self.names.block_size
        prompt_chain = self.names.chain(prompt_ids)
        hit_blocks = 0
        for name in prompt_chain[: max(0, len(prompt_ids) - 1) // size]:
            if name not in self._held:
                break
            hit_blocks += 1
        self._touch(self.names.chain([*prompt_ids, *output_ids[:-1]]))
        return hit_blocks * size

    def _touch(self, chain: Sequence[int]) -> None:
        # Deepest first, so that a request's first block is its most recently used and its last is evicted first.
        for name in reversed(chain):
            self._held[name] = None
            self._held.move_to_end(name)
        while len(self._held) > self.num_blocks:
            self._held.popitem(last=False)
            self.evicted_blocks += 1


@dataclass(frozen=True, slots=True)
class Bound:
    """What one pooled cache would have done.

    Attributes:
        prompt_tokens: All prompts together.
        cached_tokens: Of these, found in the cache.
        distinct_blocks: Different whole blocks in all requests and answers.
        evicted_blocks: Blocks that had to go for others.
    """

    prompt_tokens: int
    cached_tokens: int
    distinct_blocks: int
    evicted_blocks: int

    @property
    def hit_rate(self) -> float:
        """Cached tokens over prompt tokens, 0 to 1; 0 without requests."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def lru_bound(requests: Iterable[tuple[Sequence[int], Sequence[int]]], num_blocks: int, block_size: int) -> Bound:
    """Serve (prompt ids, answer ids) in the order in which they were sent from one LRU of `num_blocks` blocks."""
    cache = PooledCache(num_blocks, block_size)
    prompt_tokens = cached_tokens = 0
    for prompt_ids, output_ids in requests:
        prompt_tokens += len(prompt_ids)
        cached_tokens += cache.serve(prompt_ids, output_ids)
    return Bound(prompt_tokens, cached_tokens, len(cache.names), cache.evicted_blocks)
