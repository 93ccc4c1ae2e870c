"""SGLang's event payloads: vLLM's family, with fewer fields and hashes of its own.

Events are arrays (`[ts, [event, ...], attn_dp_rank]`, `["BlockStored", value, ...]`):

    BlockStored       block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, then in releases of 2026
                      `{"cache_salt": ...}` for salted blocks; in later ones cache_salt, session_id, lora_name, ...
    BlockRemoved      block_hashes, medium
    AllBlocksCleared

A block is a page (`--page-size`, 1 by default); a hash is the first 8 bytes, as a signed integer, of
`sha256(parent's digest, each token id as 4 bytes, little-endian)`. Media are GPU, CPU_PINNED, DISK and EXTERNAL, a pool
shared by engines. With speculative decoding by bigrams token ids are pairs: these blocks can't be named. Rank r
publishes on port + r, for both sockets; replay answers bear no topic. Source: python/sglang/srt/disaggregation/
kv_events.py and mem_cache/{radix_cache,kv_cache_event_recorder,utils}.py of sgl-project/sglang, 2025 to October 2026.
"""

from __future__ import annotations

from typing import Any

from replica.agent.adapters.vllm import VllmAdapter

_SALT, _SALT_OR_METADATA = "cache_salt", "metadata"


class SglangAdapter(VllmAdapter):
    """See `replica.agent.adapters.Adapter`."""

    name = "sglang"
    stored_fields = (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        _SALT_OR_METADATA,
        "session_id",
        "lora_name",
        "namespaced_block_hashes",
        "namespaced_parent_block_hash",
        _SALT,
    )
    removed_fields = ("block_hashes", "medium", "namespaced_block_hashes")

    def extra_keys(self, fields: dict[Any, Any], blocks: int) -> tuple[Any, ...] | None:
        """A salt is told for a whole event; what it makes of the first block's hash is not known here."""
        salt = fields.get(_SALT) or fields.get(_SALT_OR_METADATA)
        if isinstance(salt, dict):
            salt = salt.get(_SALT)
        return (("cache_salt",),) * blocks if salt else None
