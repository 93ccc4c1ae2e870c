"""tests/vllm/install.sh: what it says when it can't work, and that it works only once. Its real run is `make test-vllm`."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "vllm" / "install.sh"


def run(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHON": python}
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, env=environ)


def test_folder_must_be_named() -> None:
    """Without a folder it says how it is used, exit code 2."""
    done = run()
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_python_must_run(tmp_path: Path) -> None:
    """A Python that does not run is named, with what to do."""
    done = run(str(tmp_path / "venv"), python="/bin/false")
    assert done.returncode == 1
    assert done.stderr == "/bin/false does not run, or lacks venv: point PYTHON at Python 3.11 or newer\n"


def test_finished_installation_is_left_alone(tmp_path: Path) -> None:
    """With the stamp of this script and this Python it ends at once, says nothing and changes nothing."""
    stamp = tmp_path / ".warmroute-installed"
    stamp.write_text(f"{hashlib.sha256(SCRIPT.read_bytes()).hexdigest()} {platform.python_version()}\n")
    done = run(str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == [stamp]


def test_failed_installation_leaves_no_stamp(tmp_path: Path) -> None:
    """A stamp of another version does not count; when the installation then fails, that is said and nothing is stamped."""
    stamp = tmp_path / ".warmroute-installed"
    stamp.write_text("another\n")
    # A Python that tells its version and can do nothing else.
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$1" in -c) echo 3.11.0;; *) echo no room >&2; exit 1;; esac\n')
    python.chmod(0o755)
    done = run(str(tmp_path), python=str(python))
    assert done.returncode == 1
    assert "no room" in done.stderr
    assert not stamp.exists()
