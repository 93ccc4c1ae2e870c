"""`warmroute top` through a pseudo-terminal, as an operator has it, against a real admin application."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator

import pyte
import pytest


class Terminal:
    """A command in a terminal of its own; what it shows is a screen, as a terminal would draw it."""

    def __init__(self, *arguments: str, columns: int = 130, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._near, far = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(far)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "router.cli", "top", *arguments],
            stdin=far,
            stdout=far,
            stderr=far,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
        )
        self._far = far
        asyncio.get_running_loop().add_reader(self._near, self._read)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.feed(os.read(self._near, 65_536))

    def resize(self, columns: int, lines: int) -> None:
        """As a window's edge is dragged."""
        fcntl.ioctl(self._near, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._near, keys.encode())

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def attributes(self) -> object:
        """How the terminal is set."""
        return termios.tcgetattr(self._far)

    def close(self) -> None:
        """End it."""
        asyncio.get_running_loop().remove_reader(self._near)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._near)
        os.close(self._far)


@pytest.fixture
async def terminals() -> AsyncIterator[list[Terminal]]:
    """Terminals that end with the test."""
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


async def test_the_fleet_is_shown_and_followed(admins, terminals, eventually):
    """Replicas with state and trust; one that goes down is shown, first and with its remedy; q ends and tidies up."""
    admin = await admins()
    for number in range(3):
        admin.announce(f"r{number}", 9001 + number)
    terminal = Terminal("--router", admin.url, "--interval", "0.5")
    terminals.append(terminal)

    def names() -> list[str]:
        rows = [line.split() for line in terminal.text.splitlines()]
        return [row[0] for row in rows if row and row[0] in ("r0", "r1", "r2")]

    # A screen comes in pieces: its heading may be there before its rows.
    await eventually(lambda: "replicas 3/3" in terminal.text and len(names()) == 3, 30)
    await eventually(lambda: terminal.text.count("exact") == 3, 10)
    admin.fleet.mark_down("r2", "fails its health probes")
    remedy = "Do: look at its engine's log"
    await eventually(lambda: "replicas 2/3" in terminal.text and remedy in terminal.text, 10)
    # What is out of rotation comes first.
    await eventually(lambda: names() == ["r2", "r0", "r1"], 10)
    terminal.type("q")
    assert await asyncio.to_thread(terminal.process.wait, 10) == 0
    await eventually(lambda: terminal.attributes == terminal.before, what="the terminal is as it was")


async def test_keys_sort_move_and_hold(admins, terminals, eventually):
    """Of 200 replicas a screenful is shown; the arrows and pages move through them, s and r sort, w and d show more."""
    admin = await admins()
    for number in range(200):
        admin.announce(f"r{number:03}", 10_000 + number)
    terminal = Terminal("--router", admin.url, "--sort", "replica", "--interval", "0.5")
    terminals.append(terminal)
    await eventually(lambda: "replicas 200/200" in terminal.text and "r000" in terminal.text, 30)
    assert "r199" not in terminal.text
    terminal.type("\x1b[F")
    await eventually(lambda: "r199" in terminal.text and "r000" not in terminal.text)
    await eventually(lambda: "to 200 of 200" in terminal.text)
    terminal.type("\x1b[H\x1b[6~")
    await eventually(lambda: "r199" not in terminal.text and "r000" not in terminal.text)
    terminal.type("\x1b[Hr")
    await eventually(lambda: "r199" in terminal.text)
    assert "Replica v" in terminal.text
    terminal.type("s")
    await eventually(lambda: "State ^" in terminal.text)
    terminal.type("d")
    await eventually(lambda: "Decisions: slowest" in terminal.text)
    terminal.type(" ")
    await eventually(lambda: "held" in terminal.text)
    terminal.resize(100, 20)
    await eventually(lambda: "q end" in terminal.screen.display[-1], what="fits a smaller window")


async def test_an_answer_that_fails_is_told_and_what_was_seen_stays(admins, terminals, eventually):
    """A router that is gone is no reason to go blank."""
    admin = await admins()
    admin.announce("r0", 9001)
    terminal = Terminal("--router", admin.url, "--interval", "0.5")
    terminals.append(terminal)
    await eventually(lambda: "replicas 1/1" in terminal.text, 30)
    await admin.runner.cleanup()
    await eventually(lambda: "no answer" in terminal.text, 15)
    assert "r0" in terminal.text
    terminal.type("\x03")
    assert await asyncio.to_thread(terminal.process.wait, 10) == 130
    await eventually(lambda: terminal.attributes == terminal.before, what="the terminal is as it was")


async def test_without_the_token_it_says_why_not(admins):
    """Exit code 1, with what the router said."""
    admin = await admins(admin={"token": "AT-777-token"})
    admin.announce("r0", 9001)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", "top", "--router", admin.url),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert "answered 401" in errors.decode()


async def test_in_a_pipe_it_prints_one_look(admins, tmp_path):
    """Without a terminal there is nobody to press keys. The token comes from a file, never from the command line."""
    admin = await admins(admin={"token": "AT-777-token"})
    admin.announce("r0", 9001)
    file = tmp_path / "token"
    file.write_text("AT-777-token\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", "top", "--router", admin.url, "--token-file", str(file)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert "r0" in out.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--router: missing"),
        (("--router", "localhost"), "--router: missing, or no address"),
        (("--router", "http://h:1", "--interval", "0.1"), "--interval: 0.1 is not within 0.5 to 60 seconds"),
        (("--router", "http://h:1", "--token-file", "/nowhere"), "--token-file: can't read /nowhere"),
    ],
)
def test_wrong_options_are_usage(arguments, said):
    """Exit code 2, with what would be right."""
    done = subprocess.run(
        [sys.executable, "-m", "router.cli", "top", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert said in done.stderr
