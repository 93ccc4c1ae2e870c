"""Blocks whose engine hashes nobody can compute, named anew from the tokens in their events (trust MAPPED). Pure.

A block's own name is its digest in a chain of ours, which a router computes as any other scheme: `xxhash_cbor`, whose
digests are 16 bytes, so that a map of a million blocks stays small. To name a block its parent's whole digest is
needed. So every live block's digest is kept under the engine's hash, and a block whose parent is not known (its
beginning was missed) has no name until the engine stores it again behind one that has.

Pages of fewer than 16 tokens (SGLang's default is one token) are told to routers in groups, as one block: see
`regrouping.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from replica.agent.block_table import BlockMap
from replica.agent.copies import MAX_LAYERS, CopiesOverflowError, LastAnnounced, tier_bound
from replica.agent.private_state import SavedLayer
from router.kv.events import HASH_MASK, BlockRemoved, BlockStored, GroupKind, Tier
from router.kv.extra_keys import NO_EXTRA_KEYS, ExtraKeys, Lora
from router.kv.hashes import chain_digests
from router.kv.schemes import HashAlgorithm, Scheme
from router.kv.wire import Layer

OWN_ALGORITHM, OWN_SEED = HashAlgorithm.XXHASH_CBOR, "warmroute"
DIGEST_BYTES = 16
MIN_BLOCK_TOKENS = 16
"""Smaller pages are grouped to blocks of at least so many tokens: a router's work grows with the number of blocks."""
UNNAMED = 0
"""Stands for the digest of a block that has none."""


def own_scheme(page_tokens: int) -> Scheme:
    """Return the scheme under which blocks of an engine with such pages are told."""
    return Scheme(OWN_ALGORITHM, page_tokens * pages_per_block(page_tokens), OWN_SEED)


def pages_per_block(page_tokens: int) -> int:
    """Return how many pages make a block of at least `MIN_BLOCK_TOKENS`."""
    return max(1, -(-MIN_BLOCK_TOKENS // page_tokens))


class MappedLayer:
    """What is held in one tier and cache group.

    Attributes:
        held: Engine hash to what names it; `UNNAMED` where nothing does.
        extra: Copies beyond the first, where there are any.
        total: Copies, all together.
        blank: How many of `named` have no name.
        named: Own digests of the blocks that routers are told of, by the engine hash of their last page; where a page
            is a block, `held` itself.
    """

    __slots__ = ("blank", "extra", "held", "kind", "named", "total")

    def __init__(self, kind: GroupKind, words: int, *, grouped: bool) -> None:
        self.held = BlockMap(words)
        self.extra: dict[int, int] = {}
        self.named = BlockMap() if grouped else self.held
        self.blank = 0
        self.total = 0
        self.kind = kind


class MappedCopies:
    """The live blocks of one unit under names of our own; the same to its unit as `replica.agent.copies.Copies`.

    Args:
        num_blocks: Pages of the GPU tier; None where the engine does not say.
        page_tokens: Tokens a page; events of other sizes are not named.
        adapters: Roots of LoRA adapters by served name: an adapter's path is part of its blocks' names.
    """

    grouped = False
    words = 2
    """Width of what names a page, in words of 64 bits: a digest."""

    def __init__(self, num_blocks: int | None, page_tokens: int, adapters: Mapping[str, str]) -> None:
        self.num_blocks = num_blocks
        self.scheme = own_scheme(page_tokens)
        self.page_tokens = page_tokens
        self.adapters = adapters
        self.clamped = 0
        self.announced = LastAnnounced()
        self.is_naming = False
        """Whether any block has had a name."""
        self.unnamed = 0
        """Blocks that were stored and could not be named, since the beginning."""
        self._layers: dict[tuple[Tier, int], MappedLayer] = {}
        self._root = int.from_bytes(self.scheme.root(), "big")

    def __len__(self) -> int:
        """Return the number of blocks that routers are told of, each tier and group counted."""
        return sum(len(layer.named) - layer.blank for layer in self._layers.values())

    def store(self, event: BlockStored) -> Sequence[int]:
        """Count one more copy of each page; return the names of blocks that were not held before.

        Raises:
            CopiesOverflowError: The tier can't hold so many distinct pages, or there are too many groups.
        """
        layer = self._layers.get((event.tier, event.group))
        if layer is None:
            if len(self._layers) >= MAX_LAYERS:
                raise CopiesOverflowError("too many tiers and cache groups")
            layer = self._layers[(event.tier, event.group)] = MappedLayer(event.kind, self.words, grouped=self.grouped)
        layer.kind = event.kind
        fresh = self._add(layer, event)
        self.is_naming = self.is_naming or bool(fresh)
        layer.total += len(event.hashes)
        bound = tier_bound(event.tier, self.num_blocks)
        if layer.total > bound:
            self.clamped += len(layer.extra)
            layer.extra.clear()
            layer.total = len(layer.held)
            if layer.total > bound:
                raise CopiesOverflowError(f"{layer.total} distinct blocks in a tier of {bound}")
        return fresh

    def remove(self, event: BlockRemoved) -> Sequence[int]:
        """Count one copy less of each page; return the names of blocks that are not held any more."""
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
            elif block in layer.held:
                layer.total -= 1
                digest = layer.named.pop(block)
                layer.held.pop(block)
                if digest:
                    gone.append(digest & HASH_MASK)
                else:
                    layer.blank -= digest == UNNAMED
        return gone

    def disbelieve(self, blocks: Sequence[int], since_s: float) -> list[tuple[int, GroupKind, list[int]]]:
        """Correct counts of blocks on the GPU, by their own names: see `replica.agent.copies.Copies`."""
        found = []
        for (tier, group), layer in self._layers.items():
            gone = []
            for block in layer.named.with_low_words(set(blocks)) if tier is Tier.GPU else ():
                layer.total -= layer.extra.pop(block, 0)
                if not self.announced.since(block, since_s):
                    layer.total -= 1
                    digest = layer.named.pop(block) or UNNAMED
                    layer.held.pop(block)
                    gone.append(digest & HASH_MASK)
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
            if len(layer.named):
                yield (int(tier), group, int(layer.kind), layer.named.low_words())

    def dump(self) -> list[SavedLayer]:
        """Return all copies with their names, to be kept."""
        found = []
        for (tier, group), layer in self._layers.items():
            named = layer.named.dump() if self.grouped else (b"", b"")
            found.append(SavedLayer(int(tier), group, int(layer.kind), *layer.held.dump(), *named, dict(layer.extra)))
        return found

    def load(self, saved: list[SavedLayer]) -> None:
        """Hold what `dump` gave. Raises ValueError when it makes no sense."""
        for kept in saved[:MAX_LAYERS]:
            layer = MappedLayer(GroupKind(kept.kind), self.words, grouped=self.grouped)
            layer.held = BlockMap.of(self.words, kept.blocks, kept.numbers)
            layer.named = BlockMap.of(2, kept.named, kept.digests) if self.grouped else layer.held
            layer.blank = sum(number == UNNAMED for _, number in layer.named.items())
            layer.extra = {block: more for block, more in kept.extra.items() if more > 0 and block in layer.held}
            layer.total = len(layer.held) + sum(layer.extra.values())
            self._layers[(Tier(kept.tier), kept.group)] = layer
        self.is_naming = len(self) > 0

    def _add(self, layer: MappedLayer, event: BlockStored) -> list[int]:
        """Hold the event's pages; return the names of blocks that are new to routers."""
        held, extra = layer.held, layer.extra
        known = [held.get(block) for block in event.hashes]
        digests = known if all(known) else self._digests(event)
        fresh = []
        for block, digest in zip(event.hashes, digests, strict=True):
            before = held.get(block)
            self.announced.note(block)
            if before is not None:
                extra[block] = extra.get(block, 0) + 1
            if not before:
                held.put(block, digest or UNNAMED)
                if digest:
                    fresh.append(digest & HASH_MASK)
                    layer.blank -= before is not None
                elif before is None:
                    self.unnamed += 1
                    layer.blank += 1
        return fresh

    def _digests(self, event: BlockStored) -> Sequence[int]:
        """Return the digest of each block of an event, `UNNAMED` where it can't be known."""
        count = len(event.hashes)
        if not event.token_ids:
            # Tiers that copy blocks of another one tell no tokens: the other one's names are theirs.
            return [self._known(block) for block in event.hashes]
        parent = self._root if event.parent is None else self._known(event.parent)
        extra = self.extra_keys(event)
        if not parent or extra is None or len(event.token_ids) != count * event.block_size:
            return [UNNAMED] * count
        after = (0, parent.to_bytes(DIGEST_BYTES, "big"))
        try:
            digests = chain_digests(event.token_ids, self.scheme, extra, after=after)
        except (TypeError, ValueError, OverflowError, AttributeError):  # tokens that are no numbers
            return [UNNAMED] * count
        return [int.from_bytes(digest, "big") for digest in digests]

    def _known(self, block: int) -> int:
        for layer in self._layers.values():
            digest = layer.named.get(block)
            if digest:
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
