"""Folders of our own in the temporary directory: what a process that was killed left behind, the next one removes.

Each folder holds a file that its owner keeps locked. The kernel drops the lock when the owner ends, however it ends, so
a folder whose lock can be had is nobody's any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path

PREFIX = "warmroute-"
LOCK = "owner.lock"


class Scratch:
    """A fresh folder; `remove` it at the end."""

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        making = self.folder / f"{LOCK}.new"
        self._lock = making.open("wb")  # closed by `remove`, or with us; children do not inherit it
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Only now by its name: a folder without it is being made, and left alone.
        making.rename(self.folder / LOCK)

    def remove(self) -> None:
        """Delete the folder and all in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def _remove_abandoned(root: Path) -> None:
    for lock in root.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as held:  # another user's, or still locked
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
