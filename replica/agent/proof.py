"""Is the engine's hash scheme the one we can compute? Pure.

Events carry tokens, but of the parent only 64 bits, while a block's hash needs its parent's whole digest. So only a
chain followed from a root block (parent null) tells: its digests are computed here under each candidate scheme and
compared with what the engine announced. Blocks with extra keys (adapter, salt, media) are left out, since events
publish those keys without what the hash needs; sparse stores too, since their hashes can't be tied to tokens.

A mismatch refutes only where the engine publishes extra keys and says that there are none, or where the tokens are our
own probe's: releases that publish no extra keys leave a salted root block looking like a plain one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from router.kv.events import BlockStored, GroupKind, Tier
from router.kv.hashes import block_hash, extend_digest
from router.kv.schemes import HashAlgorithm, Scheme

_MAX_DIGESTS = 512
"""Digests of roots' blocks that are kept for a longer chain, per candidate."""
PROOF_BLOCKS = 1
"""Blocks that must agree: one that starts at a root is a match of 64 bits by a whole digest."""


def candidates(algorithm: str | None, block_size: int, seed: str | None) -> tuple[list[Scheme], str | None]:
    """Return the schemes that an engine may have, and why there is none.

    Args:
        algorithm: As `cache_config_info` names it; None where it does not: all four are tried.
        block_size: Tokens per block.
        seed: The engine's PYTHONHASHSEED where the operator told it.
    """
    if block_size < 1:
        return [], "the engine does not tell its block size"
    try:
        algorithms = list(HashAlgorithm) if algorithm is None else [HashAlgorithm(algorithm)]
    except ValueError:
        return [], f"hash algorithm {algorithm} is not known"
    schemes = [scheme for a in algorithms if (scheme := Scheme(a, block_size, seed)).root_is_known]
    if not schemes:
        return [], (
            f"{algorithm} without PYTHONHASHSEED has a random root in each engine process; "
            "set PYTHONHASHSEED for the engine and pass it as --hash-seed, or use sha256_cbor"
        )
    return schemes, None


@dataclass(slots=True)
class _Candidate:
    scheme: Scheme
    root: bytes
    digests: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    agreed_blocks: int = 0
    refuted: bool = False


class SchemeProof:
    """Holds announced blocks against candidate schemes until one is proven or all are refuted.

    Attributes:
        state: `open`, `proven` or `refuted`.
        scheme: The proven scheme, or None.
        reason: Why there is no proof, in words for an operator; None when proven.
    """

    def __init__(self, schemes: list[Scheme], hopeless: str | None = None) -> None:
        self._candidates = [_Candidate(scheme, scheme.root()) for scheme in schemes]
        self._probe: tuple[int, ...] | None = None
        self.state: Literal["open", "proven", "refuted"] = "open" if schemes else "refuted"
        self.scheme: Scheme | None = None
        self.reason: str | None = hopeless if not schemes else "no root block seen yet"

    def expect_probe(self, token_ids: list[int]) -> None:
        """Say that a plain request with these tokens is on its way: its root block decides."""
        self._probe = tuple(token_ids)

    def see(self, event: BlockStored) -> None:
        """Look at one event. Never raises for what an engine sends."""
        if self.state != "open" or not self._usable(event):
            return
        probe = self._is_probe(event)
        decisive = probe or event.extra_keys is not None
        for candidate in self._candidates:
            if not candidate.refuted:
                self._follow(candidate, event, decisive)
        self._settle()

    def _usable(self, event: BlockStored) -> bool:
        size = event.block_size
        return (
            bool(event.hashes)
            and event.tier is Tier.GPU
            and event.kind is GroupKind.FULL
            and event.lora_name is None
            and len(event.token_ids) == size * len(event.hashes)
            and all(size == candidate.scheme.block_size for candidate in self._candidates)
            and all(type(token) is int and 0 <= token < 1 << 64 for token in event.token_ids)
            and (event.extra_keys is None or len(event.extra_keys) == len(event.hashes))
        )

    def _is_probe(self, event: BlockStored) -> bool:
        tokens = tuple(event.token_ids)
        return self._probe is not None and event.parent is None and self._probe[: len(tokens)] == tokens

    def _follow(self, candidate: _Candidate, event: BlockStored, decisive: bool) -> None:
        if event.parent is None:
            parent = candidate.root
        else:
            known = candidate.digests.get(event.parent)
            if known is None:
                return
            parent = known
        size = candidate.scheme.block_size
        for index, announced in enumerate(event.hashes):
            if event.extra_keys is not None and event.extra_keys[index]:
                return
            tokens = event.token_ids[index * size : (index + 1) * size]
            parent = extend_digest(parent, tokens, None, candidate.scheme.algorithm)
            if block_hash(parent) != announced:
                candidate.refuted = decisive
                return
            candidate.agreed_blocks += 1
            candidate.digests[announced] = parent
            if len(candidate.digests) > _MAX_DIGESTS:
                candidate.digests.popitem(last=False)

    def _settle(self) -> None:
        living = [candidate for candidate in self._candidates if not candidate.refuted]
        if not living:
            tried = ", ".join(_describe(candidate.scheme) for candidate in self._candidates)
            self.state = "refuted"
            self.reason = (
                f"announced hashes are not those of {tried}; where the engine runs with PYTHONHASHSEED, "
                "pass it as --hash-seed (releases before August 2026 have a random root without it)"
            )
            return
        for candidate in living:
            if candidate.agreed_blocks >= PROOF_BLOCKS:
                self.state, self.scheme, self.reason = "proven", candidate.scheme, None
                for other in self._candidates:
                    other.digests.clear()
                return


def _describe(scheme: Scheme) -> str:
    return f"{scheme.algorithm} with " + ("no seed" if scheme.seed is None else f"seed {scheme.seed}")
