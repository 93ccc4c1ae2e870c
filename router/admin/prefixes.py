"""Which prefixes are hot, and which replicas hold how much of each: for the heat map.

A block's hash names all blocks before it, so a prefix is the hash of its last block. Of the chains that were sampled
(router.telemetry.chain_samples) those blocks are prefixes that several requests have in common and where fewer go on
together. They are counted at the blocks of `router.index.sampling`, so an end is exact to a sixteenth of its length.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from router.fleet.fleet import Fleet
from router.index.prefix_index import PrefixIndex
from router.index.sampling import PLACES, samples_in
from router.telemetry.chain_samples import ChainSample

DEFAULT_PREFIXES = 24
MAX_PREFIXES = 100
HALF_LIFE_S = 20.0
"""A request of so long ago is half as hot as one of now."""
_MIN_REQUESTS = 2
_SLICE_CHAINS = 32
_PSEUDONYM_KEY = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A beginning that several sampled requests share.

    Attributes:
        requests: Sampled requests that begin with it.
        lately: The same, those of some time ago counted less.
        sample: One of them.
        blocks: Its length.
    """

    requests: int
    lately: float
    sample: ChainSample
    blocks: int

    @property
    def chain(self) -> Sequence[int]:
        """Its block hashes."""
        return self.sample.chain[: self.blocks]

    @property
    def last(self) -> int:
        """The hash of its last block, which names it."""
        return self.sample.chain[self.blocks - 1]

    @property
    def tokens(self) -> int:
        """Its length in tokens."""
        return self.blocks * self.sample.block_size

    @property
    def heat(self) -> float:
        """Prompt tokens of the sampled requests that lie in it, those of some time ago counted less."""
        return self.lately * self.tokens


async def hot_prefixes(samples: Sequence[ChainSample], limit: int) -> list[SharedPrefix]:
    """Return the prefixes that most prompt tokens lie in, hottest first; the loop goes on meanwhile."""
    counts: Counter[int] = Counter()
    lately: dict[int, float] = {}
    newest_s = samples[-1].at_s if samples else 0.0
    for number, sample in enumerate(samples):
        blocks, weight = _sampled(sample), 0.5 ** ((newest_s - sample.at_s) / HALF_LIFE_S)
        counts.update(blocks)
        lately.update((block, lately.get(block, 0.0) + weight) for block in blocks)
        if number % _SLICE_CHAINS == 0:
            await asyncio.sleep(0)
    found: dict[int, SharedPrefix] = {}
    for number, sample in enumerate(samples):
        for place, block in _ends(sample, counts):
            if block not in found:
                found[block] = SharedPrefix(counts[block], lately[block], sample, place + 1)
        if number % _SLICE_CHAINS == 0:
            await asyncio.sleep(0)
    return sorted(found.values(), key=lambda prefix: (-prefix.heat, -prefix.requests, prefix.last))[:limit]


def _sampled(sample: ChainSample) -> list[int]:
    return [sample.chain[place] for place in PLACES[: samples_in(len(sample.chain))]]


def _ends(sample: ChainSample, counts: Counter[int]) -> Iterable[tuple[int, int]]:
    """Yield (place, hash) of each block behind which fewer of the requests go on together."""
    places = PLACES[: samples_in(len(sample.chain))]
    shared = [counts[sample.chain[place]] for place in places]
    for place, requests, beyond in zip(places, shared, [*shared[1:], 0], strict=True):
        if requests < _MIN_REQUESTS:
            return
        if beyond < requests:
            yield place, sample.chain[place]


async def prefix_views(fleet: Fleet, index: PrefixIndex, samples: Sequence[ChainSample], limit: int) -> dict[str, Any]:
    """Return the hottest prefixes for JSON, at most `MAX_PREFIXES`."""
    views = []
    for prefix in await hot_prefixes(samples, min(limit, MAX_PREFIXES)):
        views.append(_view(prefix, _held(prefix, fleet, index)))
        await asyncio.sleep(0)
    tokens = sum(sample.prompt_tokens for sample in samples)
    return {"sampled_requests": len(samples), "sampled_tokens": tokens, "prefixes": views}


def under_pseudonyms(found: dict[str, Any]) -> dict[str, Any]:
    """Return the same with other names for hashes, which stay the same while this process lives.

    Where tenants share a fleet, whoever can compute a prompt's hash could otherwise tell that it was sent.
    """
    return {**found, "prefixes": [{**view, "hash": _pseudonym(view["hash"])} for view in found["prefixes"]]}


def _pseudonym(name: str) -> str:
    return "~" + hashlib.blake2b(name.encode(), key=_PSEUDONYM_KEY, digest_size=6).hexdigest()


def _held(prefix: SharedPrefix, fleet: Fleet, index: PrefixIndex) -> dict[str, float]:
    """Return for each replica that holds some of it the share that its best unit holds."""
    units = {unit.slot: unit for unit in fleet.units.values()}
    held: dict[str, float] = {}
    for slot, match in index.match(prefix.chain, list(units)).items():
        replica_id = units[slot].replica.replica_id
        held[replica_id] = max(held.get(replica_id, 0.0), round(match.blocks / prefix.blocks, 3))
    return held


def _view(prefix: SharedPrefix, held: dict[str, float]) -> dict[str, Any]:
    return {
        "hash": f"{prefix.last:016x}",
        "model": prefix.sample.model,
        "blocks": prefix.blocks,
        "tokens": prefix.tokens,
        "requests": prefix.requests,
        "heat_tokens": round(prefix.heat, 1),
        "held": held,
    }


def merged_prefixes(found: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return what several workers sampled as one: requests add up, what replicas hold all know alike."""
    by_hash: dict[str, dict[str, Any]] = {}
    for view in (view for each in found for view in each["prefixes"]):
        known = by_hash.setdefault(view["hash"], {**view, "requests": 0, "heat_tokens": 0.0})
        known["requests"] += view["requests"]
        known["heat_tokens"] = round(known["heat_tokens"] + view["heat_tokens"], 1)
    ranked = sorted(by_hash.values(), key=lambda view: (-view["heat_tokens"], view["hash"]))
    return {
        "sampled_requests": sum(each["sampled_requests"] for each in found),
        "sampled_tokens": sum(each["sampled_tokens"] for each in found),
        "prefixes": ranked[:limit],
    }
