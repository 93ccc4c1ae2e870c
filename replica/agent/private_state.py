"""What one agent tells the next about a unit, so that a restart beside a living engine does not cost the cache.

A file of the agent's own, which nobody else reads: up to which batch the engine was heard, with that batch's
fingerprint, and all copies; where blocks are named by their tokens, also the names. It holds hashes, never tokens.
Written as often as a snapshot, and at the end. Whether it still holds is not decided here: see `UnitState.absorb`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import time
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

VERSION = 1
MAX_FILE_BYTES = 1 << 30
KEPT_S = 7 * 86_400.0


class SavedLayer(msgspec.Struct, array_like=True):
    """One tier and cache group: hashes as 64-bit words, numbers as words beside them, further copies."""

    tier: int
    group: int
    kind: int
    blocks: bytes
    numbers: bytes = b""
    named: bytes = b""
    digests: bytes = b""
    extra: dict[int, int] = msgspec.field(default_factory=dict)


class Saved(msgspec.Struct, array_like=True):
    """One unit at one moment.

    Attributes:
        unit, engine_url: Whose it is.
        started_s: When the engine's process began, as it tells; None where it does not.
        sequence: The last batch that is in it.
        fingerprint: That batch's.
        head_lost: Blocks from before it may be missing.
        page_tokens: Tokens a page where blocks are named by their tokens; 0 where the engine's own names are told.
        scheme: Algorithm, block size and seed that were proven, or None.
        layers: All copies.
        group_sizes, group_tails: How its cache groups match (`UnitState`). An earlier agent did not keep them.
    """

    version: int
    unit: str
    engine_url: str
    started_s: float | None
    sequence: int
    fingerprint: int
    head_lost: bool
    page_tokens: int
    scheme: tuple[str, int, str | None] | None
    layers: list[SavedLayer]
    group_sizes: dict[int, int] = msgspec.field(default_factory=dict)
    group_tails: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)


class StateFile:
    """Where one unit's state lies.

    Args:
        folder: For all units of this user; made where it is not there, for nobody else to see.
        unit: `replica/rank`.
        engine_url: Two engines may bear one name, one after the other.
    """

    def __init__(self, folder: Path, unit: str, engine_url: str) -> None:
        self._folder = folder
        name = hashlib.sha256(f"{unit}\0{engine_url}".encode()).hexdigest()[:32]
        self._path = folder / f"{name}.state"
        self._failed = self._tidied = False

    def read(self) -> Saved | None:
        """Return what was kept, or None: nothing, of another version, or damaged."""
        try:
            if not self._is_ours() or self._path.stat().st_size > MAX_FILE_BYTES:
                return None
            saved = msgspec.msgpack.decode(self._path.read_bytes(), type=Saved)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._fail("can't be read", error)
            return None
        return saved if saved.version == VERSION else None

    def write(self, saved: Saved) -> None:
        """Keep it, in one step. What goes wrong is said once: an agent without state is an agent all the same."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                raise PermissionError("the folder belongs to somebody else, or others may write there")
            self._forget_old()
            draft = self._path.with_suffix(".draft")
            draft.write_bytes(msgspec.msgpack.encode(saved))
            draft.replace(self._path)
        except OSError as error:
            self._fail("can't be written", error)

    def _forget_old(self) -> None:
        """Units come and go: what none wrote for a week is of one that is no more."""
        if not self._tidied:
            self._tidied = True
            for path in self._folder.glob("*.state"):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < time.time() - KEPT_S:
                        path.unlink()

    def _is_ours(self) -> bool:
        found = os.lstat(self._folder)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022

    def _fail(self, what: str, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            log.warning(f"the agent's own state {what}", extra={"path": str(self._path), "error": str(error)[:200]})


def default_folder() -> Path:
    """Return a folder of this user's in the system's temporary one, which a container's restart may well leave."""
    return Path(tempfile.gettempdir()) / f"warmroute-agent-{os.geteuid()}"
