"""The limit of open files: as high as it may be, and said when that is too low."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from router.open_files import allow_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
print(allow_connections({connections}))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("hard", "connections", "told"),
    [(1024, 384, "None"), (1024, 385, "set limits.connections to at most 384"), (512, 20_000, "at most 128")],
)
def test_the_soft_limit_becomes_the_hard_one(hard: int, connections: int, told: str) -> None:
    """Two sockets a connection and 256 for the rest; a warning names the number that fits."""
    script = SCRIPT.format(hard=hard, connections=connections)
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert told in said[0]
    assert said[1] == str(hard)
