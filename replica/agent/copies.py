"""How many copies of each block a unit holds, per tier and cache group. Pure.

An engine may store one hash several times (equal blocks in concurrent requests) and announces each copy's end by
itself. So copies are counted, and only 0 to 1 and 1 to 0 are told to routers, which hold sets.

Counts may drift upward (`kv_cache_report_mode: full` re-announces blocks in the shape of stores), so their sum in a
tier and group never passes what the tier holds: beyond it every count is clamped to one. When the distinct hashes alone
pass it, removals were lost: `CopiesOverflowError`, and what the unit holds is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from replica.agent.block_table import BlockSet
from replica.agent.private_state import SavedLayer
from router.kv.events import BlockRemoved, BlockStored, GroupKind, Tier
from router.kv.wire import Layer

MAX_ANNOUNCED = 20_000
"""Blocks of which it is remembered when they were last announced: the newest."""
UNBOUNDED_TIER_BLOCKS = 4_000_000
"""Bound of a tier whose size the engine does not tell: 16 KV tokens a block make it 64 million tokens."""
MAX_LAYERS = 256


class CopiesOverflowError(Exception):
    """More distinct blocks than the tier can hold."""


def tier_bound(tier: Tier, num_blocks: int | None) -> int:
    """Return how many blocks a tier can hold at most."""
    return num_blocks if tier is Tier.GPU and num_blocks is not None else UNBOUNDED_TIER_BLOCKS


class LastAnnounced:
    """When blocks were last announced: anew, as a further copy, or as the first one after all."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """`time.monotonic()` of the batch that is being read."""
        self._at_s: dict[int, float] = {}
        self._forgotten_s = float("-inf")

    def note(self, block: int) -> None:
        """It was announced now."""
        self._at_s.pop(block, None)
        self._at_s[block] = self.now_s
        if len(self._at_s) > MAX_ANNOUNCED:
            self._forgotten_s = self._at_s.pop(next(iter(self._at_s)))

    def since(self, block: int, since_s: float) -> bool:
        """Tell whether it was announced at `since_s` or later, as far as anybody knows."""
        return self._at_s.get(block, self._forgotten_s) >= since_s


class _LayerCopies:
    """Copies within one (tier, group): a set of what is held, and a count where it is above one; nearly all are one."""

    __slots__ = ("extra", "held", "kind", "total")

    def __init__(self, kind: GroupKind) -> None:
        self.held = BlockSet()
        self.extra: dict[int, int] = {}
        self.total = 0
        self.kind = kind


class Copies:
    """The live blocks of one unit.

    Args:
        num_blocks: KV blocks of the GPU tier; None where the engine does not say.
    """

    def __init__(self, num_blocks: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.clamped = 0
        """How often re-announced hashes were clamped to one copy."""
        self.announced = LastAnnounced()
        self._layers: dict[tuple[Tier, int], _LayerCopies] = {}

    def __len__(self) -> int:
        """Return the number of distinct (hash, tier, group)."""
        return sum(len(layer.held) for layer in self._layers.values())

    def store(self, event: BlockStored) -> list[int]:
        """Count one more copy of each hash; return those that were not held before.

        Raises:
            CopiesOverflowError: The tier can't hold so many distinct blocks, or there are too many groups.
        """
        hashes, tier = event.hashes, event.tier
        layer = self._layers.get((tier, event.group))
        if layer is None:
            if len(self._layers) >= MAX_LAYERS:
                raise CopiesOverflowError("too many tiers and cache groups")
            layer = self._layers[(tier, event.group)] = _LayerCopies(event.kind)
        layer.kind = event.kind
        held, extra = layer.held, layer.extra
        fresh = []
        add, note = held.add, self.announced.note
        for block in hashes:
            note(block)
            if add(block):
                fresh.append(block)
            else:
                extra[block] = extra.get(block, 0) + 1
        layer.total += len(hashes)
        bound = tier_bound(tier, self.num_blocks)
        if layer.total > bound:
            self._clamp(layer)
            if layer.total > bound:
                raise CopiesOverflowError(f"{layer.total} distinct blocks in a tier of {bound}")
        return fresh

    def remove(self, event: BlockRemoved) -> list[int]:
        """Count one copy less of each hash; return those that are not held any more. Unknown ones are ignored."""
        layer = self._layers.get((event.tier, event.group))
        if layer is None:
            return []
        gone = []
        for block in event.hashes:
            more = layer.extra.get(block)
            if more is not None:
                layer.total -= 1
                if more > 1:
                    layer.extra[block] = more - 1
                else:
                    del layer.extra[block]
            elif layer.held.discard(block):
                layer.total -= 1
                gone.append(block)
        return gone

    def disbelieve(self, blocks: Sequence[int], since_s: float) -> list[tuple[int, GroupKind, list[int]]]:
        """Correct counts of blocks on the GPU that the engine did not find when it was asked after `since_s`.

        One that was announced since is there, once; the others are not.

        Returns:
            What is held no more, as (group, kind, hashes).
        """
        found = []
        for (tier, group), layer in self._layers.items():
            gone = []
            for block in blocks if tier is Tier.GPU else ():
                layer.total -= layer.extra.pop(block, 0)
                if not self.announced.since(block, since_s) and layer.held.discard(block):
                    layer.total -= 1
                    gone.append(block)
            if gone:
                found.append((group, layer.kind, gone))
        return found

    def kind(self, tier: Tier, group: int) -> GroupKind:
        """Return how a group matches; FULL for one that is not known."""
        layer = self._layers.get((tier, group))
        return GroupKind.FULL if layer is None else layer.kind

    def clear(self) -> None:
        """Hold nothing."""
        self._layers.clear()

    def layers(self) -> Iterator[Layer]:
        """Yield the live blocks of each tier and group."""
        for (tier, group), layer in self._layers.items():
            if layer.held:
                yield (int(tier), group, int(layer.kind), layer.held.words())

    def dump(self) -> list[SavedLayer]:
        """Return all copies, to be kept."""
        return [
            SavedLayer(int(tier), group, int(layer.kind), bytes(layer.held.words()), extra=dict(layer.extra))
            for (tier, group), layer in self._layers.items()
        ]

    def load(self, saved: list[SavedLayer]) -> None:
        """Hold what `dump` gave. Raises ValueError when it makes no sense."""
        for kept in saved[:MAX_LAYERS]:
            layer = self._layers[(Tier(kept.tier), kept.group)] = _LayerCopies(GroupKind(kept.kind))
            layer.held = BlockSet.of(kept.blocks)
            layer.extra = {block: more for block, more in kept.extra.items() if more > 0 and block in layer.held}
            layer.total = len(layer.held) + sum(layer.extra.values())

    def _clamp(self, layer: _LayerCopies) -> None:
        self.clamped += len(layer.extra)
        layer.extra.clear()
        layer.total = len(layer.held)
