"""Tokenizer files that agents published -> the texts of models that the configuration has no tokenizer for.

In the background: until a model's files are there and loaded, and where they can't be, its replicas are asked
(`router.proxy.remote_reading`). Where replicas differ, as in a rollout, the set that most of them register holds, the
newest of two that are even.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from router.config import ModelConfig
from router.feeds.redis_link import RedisLink
from router.feeds.roster import Roster
from router.kv.log_lines import clean
from router.kv.text_files import (
    FROM_ENGINE,
    MAX_FILE_BYTES,
    MAX_TOGETHER_BYTES,
    digest_of,
    has_tokenizer,
    is_needed,
    set_digest,
)
from router.request.encoders.encoder import TokenizerError
from router.request.text import Text
from router.texts import ModelTexts, published_origin

LOG = logging.getLogger("warmroute.feeds.redis")
ROUND_S = 0.5
MISSING_RETRY_S, WRONG_RETRY_S = 1.0, 30.0
MAX_KEPT_BYTES = 512 * 2**20
"""Of the files of all texts that are kept, those in use included."""
MAX_SPARE = 2
"""Texts kept beyond those in use: a rollout may go back."""
MAX_FAILURES_KEPT = 256

_Key = tuple[str, str]
"""Model and digest of the set: what its configuration says belongs to a text."""


class _UnusableError(Exception):
    """The set can't be used, at least for `retry_s` seconds; `str(error)` says why."""

    def __init__(self, reason: str, retry_s: float) -> None:
        super().__init__(reason)
        self.retry_s = retry_s


class PublishedTexts:
    """Follows what believed registrations list.

    Args:
        roster: Whose registrations count.
        texts: What is kept up to date.
        models: The configuration's.
        is_signed: Whether registrations are signed here.
        clock: In seconds.
    """

    def __init__(
        self,
        roster: Roster,
        texts: ModelTexts,
        models: Sequence[ModelConfig],
        is_signed: bool,
        clock: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._texts = texts
        self._models = [model for model in models if model.tokenizer is None]
        self._is_signed = is_signed
        self._clock = clock
        self._kept: OrderedDict[_Key, tuple[Text, int]] = OrderedDict()
        self._in_use: dict[str, str] = {}
        self._retry_s: dict[_Key, float] = {}
        self._said: set[tuple[str, str]] = set()

    async def run(self, link: RedisLink) -> None:
        """Follow until the link breaks."""
        while self._models:
            for model in self._models:
                await self._follow(link, model)
            await asyncio.sleep(ROUND_S)

    async def _follow(self, link: RedisLink, model: ModelConfig) -> None:
        told = self._told_of(model.name)
        if told is None:
            return
        key = (model.name, set_digest(told))
        if not told or self._retry_s.get(key, 0.0) > self._clock():
            self._drop(model.name)
            return
        if self._in_use.get(model.name) == key[1]:
            return
        try:
            if key not in self._kept:
                self._kept[key] = await self._load(link, model, told)
        except _UnusableError as error:
            self._unusable(key, error)
            return
        self._in_use[model.name] = key[1]
        self._kept.move_to_end(key)
        self._texts.adopt(model.name, self._kept[key][0], published_origin(told))
        LOG.info(
            "a model's tokenizer is taken from its agents",
            extra={"model": model.name, "files": published_origin(told).detail},
        )
        self._forget_spare()

    def _told_of(self, model: str) -> Mapping[str, str] | None:
        """Return the files that hold for a model: none where no replica of it has any; None where it has no replica."""
        votes: dict[tuple[tuple[str, str], ...], tuple[int, int]] = {}
        for member in self._roster.members.values():
            for unit in member.units.values():
                told = unit.registration
                if any(served.name == model and served.parent is None for served in told.models):
                    files = tuple(sorted(item for item in told.text_files.items() if _is_known(item[0])))
                    count, newest = votes.get(files, (0, 0))
                    votes[files] = (count + 1, max(newest, told.epoch))
        usable = [files for files in votes if has_tokenizer(dict(files))]
        if usable:
            best = max(usable, key=votes.__getitem__)
            return dict(best)
        return {} if votes else None

    async def _load(self, link: RedisLink, model: ModelConfig, told: Mapping[str, str]) -> tuple[Text, int]:
        in_use = sum(self._kept[key][1] for key in self._in_use.items() if key in self._kept)
        left = min(MAX_TOGETHER_BYTES, MAX_KEPT_BYTES - in_use)
        files: dict[str, bytes] = {}
        for name, digest in told.items():
            data = await link.text_file(digest, MAX_FILE_BYTES)
            if data is None:
                raise _UnusableError(f"{name} is not in Redis, or too large", MISSING_RETRY_S)
            if await asyncio.to_thread(digest_of, data) != digest:
                raise _UnusableError(f"{name} in Redis is not what its hash says", WRONG_RETRY_S)
            left -= len(data)
            if left < 0:
                raise _UnusableError("the files are more than the router keeps", WRONG_RETRY_S)
            files[name] = data
        size = sum(map(len, files.values()))
        try:
            return await asyncio.to_thread(self._texts.load_published, model, files, self._is_signed), size
        except TokenizerError as error:
            raise _UnusableError(str(error), float("inf")) from None

    def _unusable(self, key: _Key, error: _UnusableError) -> None:
        if len(self._retry_s) >= MAX_FAILURES_KEPT:
            self._retry_s.clear()
            self._said.clear()
        self._retry_s[key] = self._clock() + error.retry_s
        if (key[1], str(error)) not in self._said:
            self._said.add((key[1], str(error)))
            LOG.warning(
                "the tokenizer that agents publish can't be used, replicas are asked instead: %s",
                clean(str(error)),
                extra={"model": key[0]},
            )
        self._drop(key[0])

    def _drop(self, model: str) -> None:
        if self._in_use.pop(model, None) is not None:
            self._texts.drop(model)

    def _forget_spare(self) -> None:
        spare = [key for key in self._kept if self._in_use.get(key[0]) != key[1]]
        size = sum(size for _, size in self._kept.values())
        for place, key in enumerate(spare):
            if len(spare) - place > MAX_SPARE or size > MAX_KEPT_BYTES:
                size -= self._kept.pop(key)[1]


def _is_known(name: str) -> bool:
    return is_needed(name) or name in FROM_ENGINE
