"""Extra keys: what besides tokens belongs to a block's identity.

As vLLM 0.32 hashes them: tagged, and in the order LoRA, media, salt, prompt embeddings. (Its events publish them
without the tags and without the adapter's path.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter.

    Attributes:
        name: What clients call it.
        path: Where the engine loaded it from: the adapter's `root` in `/v1/models`.
    """

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One image, sound or video in a prompt.

    Attributes:
        identifier: The engine's content hash, or the id that the client gave.
        offset: Its first placeholder token in the prompt, from 0.
        length: Its placeholder tokens.
    """

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """A request's extra keys.

    Attributes:
        lora: The adapter; on every block.
        salt: `cache_salt`; on the first block alone. An empty one counts as none (the engine answers it with a 400).
        media: Items in the order of their offsets; each on every block that it touches.
        embeds: SHA-256 of each block's prompt embeddings, as hex, one for each full block; empty without embeddings.
    """

    lora: Lora | None = None
    salt: str | None = None
    media: tuple[MediaItem, ...] = ()
    embeds: tuple[str, ...] = ()

    def for_block(self, start: int, end: int) -> tuple[Any, ...] | None:
        """Return the keys of the block of tokens `start` (included) to `end` (excluded); None when it has none.

        The pickle schemes hash identity (see `router.kv.encodings.pickled`), so it matters which equal texts are one
        object. Here name, path and salt are objects of their own and shared with nothing, as in an engine that decoded
        each from a message. Media items share a text where the caller's items share one: give each item its own
        `identifier` object to get what a serving engine makes of the same image sent twice. (Python itself shares
        texts of one character, there as here.)
        """
        keys: list[tuple[Any, ...]] = []
        if self.lora is not None:
            keys.append(("lora", _own(self.lora.name), _own(self.lora.path)))
        if self.media:
            keys += self._media_keys(start, end)
        if self.salt and start == 0:
            keys.append(("cache_salt", _own(self.salt)))
        if self.embeds:
            keys.append(("prompt_embeds", bytes.fromhex(self.embeds[start // (end - start)])))
        return tuple(keys) or None

    def _media_keys(self, start: int, end: int) -> list[tuple[Any, ...]]:
        last = self.media[-1]
        if last.offset + last.length <= start:
            return []
        keys: list[tuple[Any, ...]] = []
        owned: dict[int, str] = {}
        for item in self.media:
            if item.offset >= end:
                break
            if item.offset + item.length <= start:
                continue
            identifier = owned.setdefault(id(item.identifier), _own(item.identifier))
            keys.append(("mm", identifier, item.offset - start))
            if item.offset + item.length > end:
                break
        return keys


NO_EXTRA_KEYS = ExtraKeys()
"""A request with nothing but tokens."""


def _own(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
