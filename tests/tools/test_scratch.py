"""Folders of processes that were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from router.tools.scratch import PREFIX, Scratch

MAKE = (
    "from router.tools.scratch import Scratch; import os; print(Scratch().folder, flush=True); os.kill(os.getpid(), 9)"
)


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in use, one that is being made and one of somebody else stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    killed = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, timeout=30, check=False)
    abandoned = Path(killed.stdout.strip())
    assert abandoned.is_dir()
    in_use = Scratch()
    assert not abandoned.exists()
    (tmp_path / f"{PREFIX}being-made").mkdir()
    (tmp_path / "other").mkdir()
    mine = Scratch()
    assert {path.name for path in tmp_path.iterdir()} == {
        in_use.folder.name, mine.folder.name, f"{PREFIX}being-made", "other",
    }  # fmt: skip
    for scratch in (in_use, mine):
        scratch.remove()
        assert not scratch.folder.exists()
