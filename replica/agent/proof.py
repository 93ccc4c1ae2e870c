"""Is the engine's hash scheme the one we can compute? Pure.

Events carry tokens, but of the parent only 64 bits, while a block's hash needs its parent's whole digest. So only a
chain followed from a root block (parent null) tells: its digests are computed here under each candidate scheme and
compared with what the engine announced. Blocks with extra keys (adapter, salt, media) are left out, since events
publish those keys without what the hash needs; sparse stores too, since their hashes can't be tied to tokens.

The block size is the events' own: what the engine's metrics tell may be missing, or be that of another cache group.

A mismatch refutes only where the engine publishes extra keys and says that there are none, or where the tokens are our
own probe's: releases that publish no extra keys leave a salted root block looking like a plain one. Nor does it beyond
the GPU tier, whose events come from elsewhere than the engine's own cache.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from router.kv.events import BlockStored, GroupKind, Tier
from router.kv.hashes import block_hash, extend_digest
from router.kv.schemes import HashAlgorithm, Scheme

_MAX_DIGESTS = 512
"""Digests of roots' blocks that are kept for a longer chain, per candidate."""
_MAX_SIZES = 4
"""Block sizes that are told apart: hybrid engines have one for each cache group."""
PROOF_BLOCKS = 1
"""Blocks that must agree: one that starts at a root is a match of 64 bits by a whole digest."""

Naming = tuple[HashAlgorithm, str | None]
"""A scheme without its block size: algorithm and seed."""


def namings(algorithm: str | None, seed: str | None) -> tuple[list[Naming], str | None]:
    """Return the ways in which an engine may name its blocks, and why there is none.

    Args:
        algorithm: As `cache_config_info` names it; None where it does not: all four are tried.
        seed: The engine's PYTHONHASHSEED where the operator told it.
    """
    try:
        algorithms = list(HashAlgorithm) if algorithm is None else [HashAlgorithm(algorithm)]
    except ValueError:
        return [], f"hash algorithm {algorithm} is not known"
    found: list[Naming] = [(a, seed) for a in algorithms if Scheme(a, 1, seed).root_is_known]
    if not found:
        return [], (
            f"{algorithm} without PYTHONHASHSEED has a random root in each engine process; "
            "set PYTHONHASHSEED for the engine and pass it as --hash-seed, or use sha256_cbor"
        )
    return found, None


@dataclass(slots=True)
class _Candidate:
    scheme: Scheme
    root: bytes
    digests: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    agreed_blocks: int = 0
    refuted: bool = False


class SchemeProof:
    """Holds announced blocks against candidate schemes until one is proven or all are refuted.

    Args:
        algorithm: See `namings`.
        block_size: Tokens a block as the engine's metrics tell; None where they do not.
        seed: See `namings`.
        unit: Tokens that one hash is made of as the engine's metrics tell; None where they do not.

    Attributes:
        state: `open`, `proven` or `refuted`.
        scheme: The proven scheme, or None.
        told_size: `block_size` as it was given.
        seen_size: Tokens a block in the events of full groups: the told size where one came with it, else the first
            that came; None before any.
    """

    def __init__(
        self, algorithm: str | None, block_size: int | None, seed: str | None, unit: int | None = None
    ) -> None:
        self._namings, self._hopeless = namings(algorithm, seed)
        self._sizes: dict[int, list[_Candidate]] = {}
        self._unit = unit
        self._probe: tuple[int, ...] | None = None
        self._unmatched_roots = 0
        self._other_roots = 0
        self.state: Literal["open", "proven", "refuted"] = "open" if self._namings else "refuted"
        self.scheme: Scheme | None = None
        self.told_size = block_size if block_size and block_size > 0 else None
        self.seen_size: int | None = None

    @property
    def block_size(self) -> int | None:
        """Tokens a block: of what is proven, else as events say, else as metrics say."""
        return self.scheme.block_size if self.scheme is not None else self.seen_size or self.told_size

    @property
    def sizes_differ(self) -> bool:
        """Whether events have another block size than the engine's metrics tell."""
        return None not in (self.seen_size, self.told_size) and self.seen_size != self.told_size

    @property
    def reason(self) -> str | None:
        """Why there is no proof, in words for an operator; None when proven."""
        if self.state == "proven":
            return None
        if self._hopeless is not None:
            return self._hopeless
        tried = ", ".join(_describe(naming) for naming in self._namings)
        remedy = (
            "where the engine runs with PYTHONHASHSEED, pass it as --hash-seed (releases before August 2026 have a "
            "random root without it)"
        )
        if self.state == "refuted":
            reason = f"announced hashes are not those of {tried}; {remedy}"
        elif self._unmatched_roots:
            reason = f"{self._unmatched_roots} root blocks were seen and none has the hash of {tried}; {remedy}"
        elif self._other_roots:
            reason = f"{self._other_roots} root blocks were seen, all with adapter, salt, media or without their tokens"
        else:
            reason = "no root block seen yet"
        if self.sizes_differ:
            reason += f"; events have blocks of {self.seen_size} tokens, the engine's metrics say {self.told_size}"
        return reason

    def expect_probe(self, token_ids: list[int]) -> None:
        """Say that a plain request with these tokens is on its way: its root block decides."""
        self._probe = tuple(token_ids)

    def see(self, event: BlockStored) -> None:
        """Look at one event. Never raises for what an engine sends."""
        if event.kind is not GroupKind.FULL or not event.hashes:
            return
        if event.token_ids and (self.seen_size is None or event.block_size == self.told_size):
            self.seen_size = event.block_size
        if self.state != "open":
            return
        candidates = self._candidates(event.block_size) if _usable(event) else []
        if not candidates or (event.extra_keys and event.extra_keys[0]):
            self._other_roots += event.parent is None
            return
        decisive = self._is_probe(event) or (event.extra_keys is not None and event.tier is Tier.GPU)
        sizes = (event.block_size, self._unit)  # of another size nobody said that blocks are hashed by it
        agreed = [
            _follow(candidate, event, decisive=decisive and candidate.scheme.block_size in sizes)
            for candidate in candidates
            if not candidate.refuted
        ]
        self._unmatched_roots += event.parent is None and not any(agreed)
        self._settle(candidates)

    def restore(self, scheme: Scheme) -> None:
        """Take a scheme that was proven in this life of the engine, where it is one that may be proven."""
        if self.state == "open" and (scheme.algorithm, scheme.seed) in self._namings:
            self.state, self.scheme = "proven", scheme
            self.seen_size = scheme.block_size

    def _candidates(self, size: int) -> list[_Candidate]:
        """Return what a block of so many tokens may be hashed by: in one piece, or in several, which engines do whose
        cache groups have blocks of several sizes. Its hash is then that of its last piece."""
        pieces = {size, *(math.gcd(size, told) for told in (self._unit, self.told_size) if told)}
        return [candidate for piece in sorted(pieces) for candidate in self._of_size(piece)]

    def _of_size(self, size: int) -> list[_Candidate]:
        found = self._sizes.get(size)
        if found is None:
            if len(self._sizes) >= _MAX_SIZES:
                return []
            schemes = [Scheme(algorithm, size, seed) for algorithm, seed in self._namings]
            found = self._sizes[size] = [_Candidate(scheme, scheme.root()) for scheme in schemes]
        return found

    def _is_probe(self, event: BlockStored) -> bool:
        tokens = tuple(event.token_ids)
        return self._probe is not None and event.parent is None and self._probe[: len(tokens)] == tokens

    def _settle(self, candidates: list[_Candidate]) -> None:
        living = [candidate for candidate in candidates if not candidate.refuted]
        for candidate in living:
            if candidate.agreed_blocks >= PROOF_BLOCKS:
                self.state, self.scheme = "proven", candidate.scheme
                self._sizes.clear()
                return
        # Another cache group with larger blocks joins hashes of smaller ones: it refutes nothing of the told size.
        told = next((size for size in (self._unit, self.told_size) if size in self._sizes), None)
        deciding = candidates if told is None else self._sizes[told]
        if all(candidate.refuted for candidate in deciding):
            self.state = "refuted"
            self._sizes.clear()


def _usable(event: BlockStored) -> bool:
    return (
        event.lora_name is None
        and len(event.token_ids) == event.block_size * len(event.hashes)
        and all(type(token) is int and 0 <= token < 1 << 64 for token in event.token_ids)
        and (event.extra_keys is None or len(event.extra_keys) == len(event.hashes))
    )


def _follow(candidate: _Candidate, event: BlockStored, *, decisive: bool) -> bool:
    """Compare an event's blocks with a candidate's; return whether the first one agreed."""
    if event.parent is None:
        parent = candidate.root
    else:
        known = candidate.digests.get(event.parent)
        if known is None:
            return False
        parent = known
    size = candidate.scheme.block_size
    pieces = event.block_size // size
    for index, announced in enumerate(event.hashes):
        if event.extra_keys is not None and event.extra_keys[index]:
            return index > 0
        for piece in range(index * pieces, (index + 1) * pieces):
            tokens = event.token_ids[piece * size : (piece + 1) * size]
            parent = extend_digest(parent, tokens, None, candidate.scheme.algorithm)
        if block_hash(parent) != announced:
            candidate.refuted = decisive
            return index > 0
        candidate.agreed_blocks += 1
        candidate.digests[announced] = parent
        if len(candidate.digests) > _MAX_DIGESTS:
            candidate.digests.popitem(last=False)
    return True


def _describe(naming: Naming) -> str:
    algorithm, seed = naming
    return f"{algorithm} with " + ("no seed" if seed is None else f"seed {seed}")
