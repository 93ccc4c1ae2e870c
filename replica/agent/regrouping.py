"""Pages smaller than a block, told to routers in groups of equal length from the root on. Pure.

A block of ours is k pages of one chain, the first of them at a multiple of k from the root. It is stored when its last
page is, since an engine stores a page only behind those before it; and it is gone when its last page is, since an
engine removes a page only after those behind it. So routers are told of last pages alone.

What a last page is named by are the tokens of its k pages and the digest of the block before. So each page keeps its
own tokens, its place within the group and its parent, packed into one integer; the walk back is k - 1 steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replica.agent.block_table import BlockMap
from replica.agent.mapping import DIGEST_BYTES, UNNAMED, NamedCopies, NamedLayer, names_of, pages_per_block
from replica.agent.private_state import SavedLayer
from router.kv.events import HASH_MASK, BlockStored, GroupKind
from router.kv.extra_keys import ExtraKeys
from router.kv.hashes import chain_digests

_TOKEN_BITS, _PLACE_BITS, _HASH_BITS = 32, 8, 64
_MAX_TOKEN = (1 << _TOKEN_BITS) - 1
_LOST = 1
"""A page whose beginning is not known. Others have the highest bit of their place set."""


class GroupedLayer(NamedLayer):
    """Pages, each packed into one integer, and beside them the blocks of ours that they make."""

    __slots__ = ()

    def told(self) -> int:
        """See `LayerCopies`."""
        return len(self.ends)

    def drop(self, blocks: Sequence[int]) -> tuple[int, list[int]]:
        """See `LayerCopies`."""
        pages = sum(page is not None for page in self.held.pop_all(blocks))
        return pages, names_of([digest for digest in self.ends.pop_all(blocks) if digest is not None])

    def page(self, block: int) -> int | None:
        """Return a page as it is packed, or None."""
        packed = self.held.get(block)
        return None if packed is None else int.from_bytes(packed, "little")

    def dump(self, tier: int, group: int) -> SavedLayer:
        """See `LayerCopies`."""
        return SavedLayer(tier, group, int(self.kind), *self.held.dump(), *self.ends.dump(), dict(self.extra))


class GroupedCopies(NamedCopies[GroupedLayer]):
    """See the module. Arguments as those of `NamedCopies`, with pages of fewer than 16 tokens."""

    def __init__(self, num_blocks: int | None, page_tokens: int, adapters: Mapping[str, str]) -> None:
        super().__init__(num_blocks, page_tokens, adapters)
        self._pages = pages_per_block(page_tokens)
        self._width = -(-(_TOKEN_BITS * page_tokens + 1 + _HASH_BITS + _PLACE_BITS) // _HASH_BITS) * _HASH_BITS // 8

    def _new_layer(self, kind: GroupKind) -> GroupedLayer:
        return GroupedLayer(kind, BlockMap(self._width), BlockMap(DIGEST_BYTES))

    def _restored(self, kept: SavedLayer) -> GroupedLayer:
        held, ends = BlockMap(self._width, kept.blocks, kept.numbers), BlockMap(DIGEST_BYTES, kept.named, kept.digests)
        return GroupedLayer(GroupKind(kept.kind), held, ends)

    def _add(self, layer: GroupedLayer, event: BlockStored) -> list[int]:
        extra, size = layer.extra, event.block_size
        keys = self.extra_keys(event)
        tokens = event.token_ids if keys is not None and len(event.token_ids) == size * len(event.hashes) else None
        parent, place = event.parent, self._place_after(event.parent)
        fresh: list[int] = []
        for index, block in enumerate(event.hashes):
            before = layer.page(block)
            if before is not None:
                extra[block] = extra.get(block, 0) + 1
            if not event.token_ids:
                packed = self._packed(block)
            else:
                page = None if tokens is None else _pack(tokens[index * size : (index + 1) * size])
                packed = _LOST if page is None or place < 0 else self._joined(page, place, parent)
            place = -1 if packed == _LOST else _place(packed)
            if before is None or before == _LOST:
                layer.held.put_all((block,), (packed.to_bytes(self._width, "little"),))
                self.unnamed += packed == _LOST and before is None
                digest = self._digest(block, packed, keys) if place == self._pages - 1 else UNNAMED
                if digest != UNNAMED:
                    layer.ends.put_all((block,), (digest,))
                    fresh += names_of((digest,))
            parent = block
            place = -1 if place < 0 else (place + 1) % self._pages
        return fresh

    def _place_after(self, parent: int | None) -> int:
        """Return the place of the page behind `parent`, -1 where that is not known."""
        if parent is None:
            return 0
        packed = self._packed(parent)
        return -1 if packed == _LOST else (_place(packed) + 1) % self._pages

    def _packed(self, block: int) -> int:
        for layer in self._layers.values():
            packed = layer.page(block)
            if packed is not None and packed != _LOST:
                return packed
        return _LOST

    def _joined(self, page: int, place: int, parent: int | None) -> int:
        # A root's page has its place with a flag in place of the parent: hash 0 could be a real one.
        flag = 0 if parent is None else 1
        return (((page << 1 | flag) << _HASH_BITS | (parent or 0)) << _PLACE_BITS) | place | 1 << (_PLACE_BITS - 1)

    def _digest(self, block: int, packed: int, keys: ExtraKeys | None) -> bytes:
        """Return the digest of the block of ours that ends with a page, lowest byte first; `UNNAMED` for none."""
        known = self.known(block)
        if known != UNNAMED or keys is None:
            return known
        pages = [packed]
        while _place(pages[-1]) > 0:
            before = self._packed(_parent(pages[-1]) or 0)
            if before == _LOST or _place(before) != _place(pages[-1]) - 1:
                return UNNAMED
            pages.append(before)
        first = _parent(pages[-1])
        after = self._root if first is None else self.known(first)[::-1]
        if after == UNNAMED:
            return UNNAMED
        tokens = [token for page in reversed(pages) for token in _tokens(page, self.page_tokens)]
        return chain_digests(tokens, self.scheme, keys, after=(0, after))[0][::-1]


def _pack(tokens: Sequence[int]) -> int | None:
    packed = 0
    for token in tokens:
        if type(token) is not int or not 0 <= token <= _MAX_TOKEN:
            return None
        packed = packed << _TOKEN_BITS | token
    return packed


def _place(packed: int) -> int:
    return packed & ((1 << (_PLACE_BITS - 1)) - 1)


def _parent(packed: int) -> int | None:
    rest = packed >> _PLACE_BITS
    return rest & HASH_MASK if rest >> _HASH_BITS & 1 else None


def _tokens(packed: int, count: int) -> list[int]:
    page = packed >> (_PLACE_BITS + _HASH_BITS + 1)
    return [page >> _TOKEN_BITS * (count - 1 - index) & _MAX_TOKEN for index in range(count)]
