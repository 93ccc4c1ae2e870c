"""Blocks whose engine hashes nobody can compute, named anew from the tokens in their events (trust MAPPED). Pure.

A block's own name is its digest in a chain of ours, which a router computes as any other scheme: `xxhash_cbor`, whose
digests are 16 bytes, so that a map of a million blocks stays small. To name a block its parent's whole digest is
needed. So every live block's digest is kept under the engine's hash, and a block whose parent is not known (its
beginning was missed) has no name until the engine stores it again behind one that has.

Pages of fewer than 16 tokens (SGLang's default is one token) are told to routers in groups, as one block: see
`regrouping.py`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from replica.agent.block_table import BlockMap
from replica.agent.copies import CountedCopies, LayerCopies
from replica.agent.private_state import SavedLayer
from router.kv.events import BlockStored, GroupKind
from router.kv.extra_keys import NO_EXTRA_KEYS, ExtraKeys, Lora
from router.kv.hashes import chain_digests
from router.kv.schemes import HashAlgorithm, Scheme

OWN_ALGORITHM, OWN_SEED = HashAlgorithm.XXHASH_CBOR, "warmroute"
DIGEST_BYTES = 16
MIN_BLOCK_TOKENS = 16
"""Smaller pages are grouped to blocks of at least so many tokens: a router's work grows with the number of blocks."""
UNNAMED = bytes(DIGEST_BYTES)
"""Stands for the digest of a block that has none."""


def own_scheme(page_tokens: int) -> Scheme:
    """Return the scheme under which blocks of an engine with such pages are told."""
    return Scheme(OWN_ALGORITHM, page_tokens * pages_per_block(page_tokens), OWN_SEED)


def pages_per_block(page_tokens: int) -> int:
    """Return how many pages make a block of at least `MIN_BLOCK_TOKENS`."""
    return max(1, -(-MIN_BLOCK_TOKENS // page_tokens))


class NamedLayer(LayerCopies):
    """What is held in one tier and cache group, under names of our own.

    Args:
        held: By the engine's hash of each page, what its name is made of.
        ends: Own digests of the blocks that routers are told of, lowest byte first, by the engine's hash of their last
            page. `UNNAMED` stands for none.
    """

    __slots__ = ("ends", "held")

    def __init__(self, kind: GroupKind, held: BlockMap, ends: BlockMap) -> None:
        super().__init__(kind)
        self.held = held
        self.ends = ends

    @property
    def distinct(self) -> int:
        """See `LayerCopies`."""
        return len(self.held)

    def names(self) -> Sequence[int]:
        """See `LayerCopies`."""
        return names_of(_cut(self.ends.dump()[1]))

    def named(self, names: Sequence[int]) -> Iterable[int]:
        """See `LayerCopies`. Looks at all: for rare use."""
        blocks, digests = self.ends.dump()
        wanted = {name.to_bytes(8, "little") for name in names}
        found = zip(array("Q", blocks), _cut(digests), strict=True)
        return [block for block, digest in found if digest[:8] in wanted and digest != UNNAMED]

    def digest(self, block: int) -> bytes:
        """Return the own digest of a block by the engine's hash, `UNNAMED` where it has none."""
        return self.ends.get(block) or UNNAMED


class MappedLayer(NamedLayer):
    """A layer whose pages are blocks: digests are all that names are made of.

    Attributes:
        blank: How many blocks have no name.
    """

    __slots__ = ("blank",)

    def __init__(self, kind: GroupKind, blocks: bytes = b"", digests: bytes = b"") -> None:
        held = BlockMap(DIGEST_BYTES, blocks, digests)
        super().__init__(kind, held, held)
        self.blank = _cut(digests).count(UNNAMED)

    def told(self) -> int:
        """See `LayerCopies`."""
        return len(self.held) - self.blank

    def drop(self, blocks: Sequence[int]) -> tuple[int, list[int]]:
        """See `LayerCopies`."""
        found = [digest for digest in self.held.pop_all(blocks) if digest is not None]
        gone = names_of(found)
        self.blank -= len(found) - len(gone)
        return len(found), gone

    def dump(self, tier: int, group: int) -> SavedLayer:
        """See `LayerCopies`."""
        return SavedLayer(tier, group, int(self.kind), *self.held.dump(), extra=dict(self.extra))


NamedLayerT = TypeVar("NamedLayerT", bound=NamedLayer)


class NamedCopies(CountedCopies[NamedLayerT]):
    """The live blocks of one unit under names of our own.

    Args:
        num_blocks: Pages of the GPU tier; None where the engine does not say.
        page_tokens: Tokens a page; events of other sizes are not named.
        adapters: Roots of LoRA adapters by served name: an adapter's path is part of its blocks' names.

    Attributes:
        is_naming: Whether any block has had a name.
        unnamed: Blocks that were stored and could not be named, since the beginning.
    """

    def __init__(self, num_blocks: int | None, page_tokens: int, adapters: Mapping[str, str]) -> None:
        super().__init__(num_blocks)
        self.scheme = own_scheme(page_tokens)
        self.page_tokens = page_tokens
        self.adapters = adapters
        self.is_naming = False
        self.unnamed = 0
        self._root = self.scheme.root()

    def store(self, event: BlockStored) -> list[int]:
        """See `CountedCopies`."""
        fresh = super().store(event)
        self.is_naming = self.is_naming or bool(fresh)
        return fresh

    def load(self, saved: list[SavedLayer]) -> None:
        """See `CountedCopies`."""
        super().load(saved)
        self.is_naming = len(self) > 0

    def known(self, block: int) -> bytes:
        """Return a block's own digest, from whatever tier has it, lowest byte first; `UNNAMED` where none has."""
        for layer in self._layers.values():
            digest = layer.digest(block)
            if digest != UNNAMED:
                return digest
        return UNNAMED

    def extra_keys(self, event: BlockStored) -> ExtraKeys | None:
        """Return what the blocks' names hold besides tokens; None where that can't be known.

        Events publish extra keys without their tags: an adapter's name alone, which comes as `lora_name` too, is sure.
        """
        if event.block_size != self.page_tokens:
            return None
        keys = event.extra_keys
        if keys is not None and any(keys):
            alone = [event.lora_name] if event.lora_name is not None else None
            if alone is None or any(key and list(key) != alone for key in keys):
                return None
        if event.lora_name is None:
            return NO_EXTRA_KEYS
        root = self.adapters.get(event.lora_name)
        return None if root is None else ExtraKeys(lora=Lora(event.lora_name, root))


class MappedCopies(NamedCopies[MappedLayer]):
    """The live blocks of one unit whose pages are blocks; to its unit the same as `replica.agent.copies.Copies`."""

    def _new_layer(self, kind: GroupKind) -> MappedLayer:
        return MappedLayer(kind)

    def _restored(self, kept: SavedLayer) -> MappedLayer:
        return MappedLayer(GroupKind(kept.kind), kept.blocks, kept.numbers)

    def _add(self, layer: MappedLayer, event: BlockStored) -> list[int]:
        blocks = event.hashes
        before = layer.held.get_all(blocks)
        if all(before) and UNNAMED not in before:
            layer.again(blocks, ())
            return []
        digests = self._digests(event)
        if not any(before) and len(set(blocks)) == len(blocks):
            layer.held.put_all(blocks, digests)
            fresh = names_of(digests)
            layer.blank += len(blocks) - len(fresh)
            self.unnamed += len(blocks) - len(fresh)
            return fresh
        return self._add_again(layer, blocks, digests)

    def _add_again(self, layer: MappedLayer, blocks: Sequence[int], digests: Sequence[bytes]) -> list[int]:
        """Hold blocks of which some are held already, and may have a name only now."""
        fresh: list[int] = []
        for block, digest in zip(blocks, digests, strict=True):
            before = layer.held.get(block)
            if before is not None:
                layer.extra[block] = layer.extra.get(block, 0) + 1
            if before is None or before == UNNAMED:
                layer.held.put_all((block,), (digest,))
                name = names_of((digest,))
                fresh += name
                self.unnamed += before is None and not name
                layer.blank += (before is None) - len(name)
        return fresh

    def _digests(self, event: BlockStored) -> Sequence[bytes]:
        """Return the digest of each block of an event, `UNNAMED` where it can't be known."""
        count = len(event.hashes)
        if not event.token_ids:
            # Tiers that copy blocks of another one tell no tokens: the other one's names are theirs.
            return [self.known(block) for block in event.hashes]
        parent = self._root if event.parent is None else self.known(event.parent)[::-1]
        extra = self.extra_keys(event)
        if parent == UNNAMED or extra is None or len(event.token_ids) != count * event.block_size:
            return [UNNAMED] * count
        try:
            digests = chain_digests(event.token_ids, self.scheme, extra, after=(0, parent))
        except (TypeError, ValueError, OverflowError, AttributeError):  # tokens that are no numbers
            return [UNNAMED] * count
        return [digest[::-1] for digest in digests]


def names_of(digests: Sequence[bytes]) -> list[int]:
    """Return what routers call blocks of these digests, without those that are `UNNAMED`."""
    words = array("Q", b"".join(digests))
    if sys.byteorder == "big":
        words.byteswap()
    lows = words[::2].tolist()
    return lows if 0 not in lows else [low for low in lows if low]


def _cut(digests: bytes) -> list[bytes]:
    return [digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)]
