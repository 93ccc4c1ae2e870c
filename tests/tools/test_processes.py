"""No child outlives us, and one that fails to start says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from router.tools.processes import Child, StartError, stop_all, wait_for

READY_THEN_WAIT = 'import time; print(\'{"ready": "x"}\', flush=True); time.sleep(600)'
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); " + READY_THEN_WAIT
WITH_GRANDCHILD = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print('{\"grandchild\": %d}' % p.pid, flush=True); p.wait()"
)
PARENT = """
import sys, time
from pathlib import Path
from router.tools.processes import Child, wait_for
child = Child("child", [sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]))
wait_for("the child", child.ready_line, [child], 20)
print(child.pid, flush=True)
time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # a zombie has ended; whoever inherits it has not looked yet


def started(tmp_path: Path, code: str, name: str = "child") -> tuple[Child, dict[str, object]]:
    child = Child(name, python(code), tmp_path)
    return child, wait_for("the child", child.ready_line, [child], 20)


def test_the_ready_line_is_read(tmp_path: Path) -> None:
    """What a server prints once ready is handed on as JSON."""
    child, ready = started(tmp_path, READY_THEN_WAIT)
    stop_all([child])
    assert ready == {"ready": "x"}


def test_half_a_ready_line_is_not_ready(tmp_path: Path) -> None:
    """A line counts when it is complete, not while it is being written."""
    code = (
        "import sys, time; sys.stdout.write('{\"ready\": '); sys.stdout.flush(); "
        "open(sys.argv[1], 'w').close(); time.sleep(600)"
    )
    wrote = tmp_path / "wrote"
    child = Child("child", [*python(code), str(wrote)], tmp_path)
    wait_for("half a line", wrote.exists, [child], 20)
    assert child.ready_line() is None
    stop_all([child])


def test_a_child_that_ends_early_shows_its_last_words(tmp_path: Path) -> None:
    """The error holds exit code and standard error, so that nobody has to look for a log."""
    with pytest.raises(StartError, match=r"exit code 3:\nno such tokenizer"):
        started(tmp_path, "import sys; sys.stderr.write('no such tokenizer'); sys.exit(3)")


def test_a_ready_line_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """A chatty program is told apart from a ready one."""
    child = Child("child", python("import time; print('hello', flush=True); time.sleep(600)"), tmp_path)
    try:
        with pytest.raises(StartError, match="hello"):
            wait_for("the child", child.ready_line, [child], 20)
    finally:
        stop_all([child])


def test_waiting_has_an_end() -> None:
    """A condition that never comes true is named in the error."""
    with pytest.raises(StartError, match="the moon"):
        wait_for("the moon", lambda: False, [], 0.05)


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After the grace the kernel ends it."""
    child, _ = started(tmp_path, DEAF)
    stop_all([child], grace_s=0.1)
    assert child.exit_code() == -signal.SIGKILL


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    """The whole process group goes, also where the child itself does not care for its own."""
    child, ready = started(tmp_path, WITH_GRANDCHILD)
    grandchild = int(str(ready["grandchild"]))
    assert is_running(grandchild)
    stop_all([child])
    wait_for("the grandchild's end", lambda: not is_running(grandchild), [], 5)


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    """A process that is gone already is no error."""
    child, _ = started(tmp_path, READY_THEN_WAIT)
    stop_all([child])
    stop_all([child])
    assert child.exit_code() == -signal.SIGTERM


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's promise is Linux's")
def test_a_killed_parent_takes_its_children_along(tmp_path: Path) -> None:
    """SIGKILL leaves us no chance to clean up: the kernel does."""
    parent = subprocess.Popen([*python(PARENT), str(tmp_path), DEAF], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    wait_for("the child's end", lambda: not is_running(pid), [], 5)
