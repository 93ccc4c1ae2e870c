"""Tells that the configuration's files have changed, by their content.

Content and no notices of the kernel: Kubernetes swaps a symbolic link when a ConfigMap changes, editors rename, and
network file systems tell nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel

LOOK_EVERY_S = 0.5
MAX_FILE_BYTES = 64 * 2**20
_NOT_WATCHED = frozenset(("tokenizer",))
"""May be a folder of gigabytes; read when its model's entry changes."""


def files_of(section: BaseModel) -> list[Path]:
    """Return the files that a configuration names: secrets, certificates, templates."""
    found: list[Path] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, BaseModel):
                found += files_of(item)
            elif isinstance(item, Path) and name not in _NOT_WATCHED:
                found.append(item)
    return found


def digests(files: Iterable[Path]) -> dict[Path, str]:
    """Return a digest of each file's content; what can't be read has one of its own."""
    found = {}
    for file in files:
        try:
            with file.open("rb") as opened:
                found[file] = hashlib.sha256(opened.read(MAX_FILE_BYTES)).hexdigest()
        except OSError as error:
            found[file] = f"unreadable: {error.errno}"
    return found


async def watch(
    files: Callable[[], list[Path]],
    changed: Callable[[], Awaitable[None]],
    known: Mapping[Path, str],
    every_s: float = LOOK_EVERY_S,
) -> None:
    """Call `changed` each time that a file's content is another than before, until cancelled.

    A change counts once two looks in a row agree on it, so that a file is not read while it is written.

    Args:
        files: What to look at; asked for at each look. A file that is new here was just read.
        known: Digests of what was read at first; taken before that, or a change right after it goes unseen.
    """
    seen: Mapping[Path, str] = {}
    while True:
        await asyncio.sleep(every_s)
        now = await asyncio.to_thread(digests, files())
        known = {file: known.get(file, digest) for file, digest in now.items()}
        if now != known and now == seen:
            known = now
            await changed()
        seen = now


async def follow(
    files: Callable[[], list[Path]],
    reload: Callable[[], Awaitable[None]],
    asked: asyncio.Event,
    known: Mapping[Path, str],
) -> None:
    """Call `reload` when a file has changed (see `watch`) and whenever `asked` is set, until cancelled."""

    async def when_asked() -> None:
        while True:
            await asked.wait()
            asked.clear()
            await reload()

    async with asyncio.TaskGroup() as group:
        group.create_task(watch(files, reload, known))
        group.create_task(when_asked())
