"""How many copies of each block a unit holds, per tier and cache group. Pure.

An engine may store one hash several times (equal blocks in concurrent requests) and announces each copy's end by
itself. So copies are counted, and only 0 to 1 and 1 to 0 are told to routers, which hold sets.

Counts may drift upward (`kv_cache_report_mode: full` re-announces blocks in the shape of stores), so their sum in a
tier and group never passes what the tier holds: beyond it every count is clamped to one. When the distinct hashes alone
pass it, removals were lost: `CopiesOverflowError`, and what the unit holds is unknown.

`Copies` tells blocks by the engine's names; `replica.agent.mapping` counts the same and tells them by names of our own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from replica.agent.block_table import BlockSet
from replica.agent.last_announced import LastAnnounced
from replica.agent.private_state import SavedLayer
from router.kv.events import BlockRemoved, BlockStored, GroupKind, Tier
from router.kv.wire import Layer

UNBOUNDED_TIER_BLOCKS = 4_000_000
"""Bound of a tier whose size the engine does not tell: 16 KV tokens a block make it 64 million tokens."""
MAX_LAYERS = 256


class CopiesOverflowError(Exception):
    """More distinct blocks than the tier can hold."""


class LayerCopies(ABC):
    """Copies within one (tier, group): what is held, and a count where it is above one; nearly all are one.

    Attributes:
        kind: How the group matches.
        extra: Copies beyond the first, where there are any.
        total: Copies, all together.
    """

    __slots__ = ("extra", "kind", "total")

    def __init__(self, kind: GroupKind) -> None:
        self.extra: dict[int, int] = {}
        self.total = 0
        self.kind = kind

    @property
    @abstractmethod
    def distinct(self) -> int:
        """How many hashes are held."""

    @abstractmethod
    def told(self) -> int:
        """Return how many blocks routers are told of."""

    @abstractmethod
    def names(self) -> Sequence[int]:
        """Return the names of the blocks that routers are told of."""

    @abstractmethod
    def drop(self, blocks: Sequence[int]) -> tuple[int, list[int]]:
        """Hold these no more; return how many were held, and the names of those that routers were told of."""

    @abstractmethod
    def named(self, names: Sequence[int]) -> Iterable[int]:
        """Return the engine's hashes of blocks that routers know by these names."""

    @abstractmethod
    def dump(self, tier: int, group: int) -> SavedLayer:
        """Return it to be kept."""

    def again(self, blocks: Sequence[int], fresh: Sequence[int]) -> None:
        """Count one copy more of each of `blocks` but those in `fresh`, which is a part of them in their order."""
        if len(fresh) == len(blocks):
            return
        news = iter(fresh)
        new = next(news, None)
        for block in blocks:
            if block == new:
                new = next(news, None)
            else:
                self.extra[block] = self.extra.get(block, 0) + 1

    def fewer(self, blocks: Sequence[int]) -> Sequence[int]:
        """Count one copy less of each block that has several; return the others."""
        if not self.extra:
            return blocks
        last = []
        for block in blocks:
            more = self.extra.get(block)
            if more is None:
                last.append(block)
                continue
            self.total -= 1
            if more > 1:
                self.extra[block] = more - 1
            else:
                del self.extra[block]
        return last

    def restore_counts(self, extra: dict[int, int], held: Sequence[int]) -> None:
        """Count what was kept: copies beyond the first, of what is held."""
        kept = set(held).intersection(extra) if extra else set()
        self.extra = {block: extra[block] for block in kept if extra[block] > 0}
        self.total = self.distinct + sum(self.extra.values())


LayerT = TypeVar("LayerT", bound=LayerCopies)


class CountedCopies(ABC, Generic[LayerT]):
    """The live blocks of one unit, whatever routers call them.

    Args:
        num_blocks: Blocks of the GPU tier; None where the engine does not say.

    Attributes:
        clamped: How often re-announced hashes were clamped to one copy.
    """

    def __init__(self, num_blocks: int | None) -> None:
        self.num_blocks = num_blocks
        self.clamped = 0
        self.announced = LastAnnounced()
        self._layers: dict[tuple[Tier, int], LayerT] = {}

    def __len__(self) -> int:
        """Return the number of blocks that routers are told of, each tier and group counted."""
        return sum(layer.told() for layer in self._layers.values())

    @abstractmethod
    def _new_layer(self, kind: GroupKind) -> LayerT: ...

    @abstractmethod
    def _add(self, layer: LayerT, event: BlockStored) -> list[int]:
        """Hold the event's blocks, those that are held already once more; return the names that are new to routers."""

    @abstractmethod
    def _restored(self, kept: SavedLayer) -> LayerT:
        """Return what `LayerCopies.dump` gave, without further copies. Raises ValueError when it makes no sense."""

    def store(self, event: BlockStored) -> list[int]:
        """Count one more copy of each block; return the names of those that were not held before.

        Raises:
            CopiesOverflowError: The tier can't hold so many distinct blocks, or there are too many groups.
        """
        layer = self._layers.get((event.tier, event.group))
        if layer is None:
            if len(self._layers) >= MAX_LAYERS:
                raise CopiesOverflowError("too many tiers and cache groups")
            layer = self._layers[(event.tier, event.group)] = self._new_layer(event.kind)
        layer.kind = event.kind
        self.announced.note(event.hashes)
        fresh = self._add(layer, event)
        layer.total += len(event.hashes)
        on_gpu = event.tier is Tier.GPU
        bound = self.num_blocks if on_gpu and self.num_blocks is not None else UNBOUNDED_TIER_BLOCKS
        if layer.total > bound:
            self.clamped += len(layer.extra)
            layer.extra.clear()
            layer.total = layer.distinct
            if layer.total > bound:
                raise CopiesOverflowError(f"{layer.total} distinct blocks in a tier of {bound}")
        return fresh

    def remove(self, event: BlockRemoved) -> list[int]:
        """Count one copy less of each block; return the names of those that are not held any more."""
        layer = self._layers.get((event.tier, event.group))
        if layer is None:
            return []
        held, names = layer.drop(layer.fewer(event.hashes))
        layer.total -= held
        return names

    def disbelieve(self, names: Sequence[int], since_s: float) -> list[tuple[int, GroupKind, list[int]]]:
        """Correct counts of blocks on the GPU that the engine did not find when it was asked after `since_s`.

        One that was announced since is there, once; the others are not.

        Returns:
            What is held no more, as (group, kind, names).
        """
        found = []
        for (tier, group), layer in self._layers.items():
            if tier is not Tier.GPU:
                continue
            blocks = list(layer.named(names))
            layer.total -= sum(layer.extra.pop(block, 0) for block in blocks)
            announced = self.announced.among(blocks, since_s)
            held, gone = layer.drop([block for block in blocks if block not in announced])
            layer.total -= held
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
        """Yield the names of the live blocks of each tier and group."""
        for (tier, group), layer in self._layers.items():
            if layer.told():
                yield (int(tier), group, int(layer.kind), layer.names())

    def dump(self) -> list[SavedLayer]:
        """Return all copies, to be kept."""
        return [layer.dump(int(tier), group) for (tier, group), layer in self._layers.items()]

    def load(self, saved: list[SavedLayer]) -> None:
        """Hold what `dump` gave. Raises ValueError when it makes no sense."""
        for kept in saved[:MAX_LAYERS]:
            layer = self._layers[(Tier(kept.tier), kept.group)] = self._restored(kept)
            layer.restore_counts(kept.extra, array("Q", kept.blocks))


class SetLayer(LayerCopies):
    """A layer whose blocks routers know by the engine's own hashes."""

    __slots__ = ("held",)

    def __init__(self, kind: GroupKind, words: bytes = b"") -> None:
        super().__init__(kind)
        self.held = BlockSet(words)

    @property
    def distinct(self) -> int:
        """See `LayerCopies`."""
        return len(self.held)

    def told(self) -> int:
        """See `LayerCopies`."""
        return len(self.held)

    def names(self) -> Sequence[int]:
        """See `LayerCopies`."""
        return array("Q", self.held.words())

    def drop(self, blocks: Sequence[int]) -> tuple[int, list[int]]:
        """See `LayerCopies`."""
        gone = self.held.discard_all(blocks)
        return len(gone), gone

    def named(self, names: Sequence[int]) -> Iterable[int]:
        """See `LayerCopies`."""
        return names

    def dump(self, tier: int, group: int) -> SavedLayer:
        """See `LayerCopies`."""
        return SavedLayer(tier, group, int(self.kind), self.held.words(), extra=dict(self.extra))


class Copies(CountedCopies[SetLayer]):
    """The live blocks of one unit under the engine's own names. Arguments as those of `CountedCopies`."""

    def __init__(self, num_blocks: int | None = None) -> None:
        super().__init__(num_blocks)

    def _new_layer(self, kind: GroupKind) -> SetLayer:
        return SetLayer(kind)

    def _restored(self, kept: SavedLayer) -> SetLayer:
        return SetLayer(GroupKind(kept.kind), kept.blocks)

    def _add(self, layer: SetLayer, event: BlockStored) -> list[int]:
        fresh = layer.held.add_all(event.hashes)
        layer.again(event.hashes, fresh)
        return fresh
