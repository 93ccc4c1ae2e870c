"""What many tests share: a real Valkey, a deadline instead of a sleep, and the golden files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# Under nohup or as a background job these are ignored, and every process that a test starts would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(number, usual)

# Tests start the project's commands hundreds of times: each would compile all of it anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Files that take longest, longest first: one that begins when all others have ended is waited for by itself.
LONG = """
tools/chaos/test_chaos_run tools/test_demo tools/load/ app/test_app_second_router app/test_app_absence
app/test_several_routers app/test_workers app/ agent/test_agent_process feeds/kinds/ tools/ agent/ feeds/ picker/
""".split()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes `-n auto` is: two a core, up to 16, since tests wait for others half of their time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores, min(2 * cores, 16))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; a file's tests stay together and in their order."""
    folder = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        name = item.path.relative_to(folder).as_posix() if item.path.is_relative_to(folder) else ""
        return next((number for number, begin in enumerate(LONG) if name.startswith(begin)), len(LONG))

    items.sort(key=rank)


# Shared cores are slow now and then: the time of one example says nothing about the code. Each run draws examples anew;
# many at once, after a change of what they look for: make unit ARGS="--hypothesis-profile thorough".
settings.register_profile("quiet", deadline=None, max_examples=100)
settings.register_profile("thorough", deadline=None, max_examples=2_000)
settings.load_profile("quiet")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of recorded truth: vectors, recordings, the tokenizer."""
    return GOLDEN


async def _eventually(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "") -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        await asyncio.sleep(0.01)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """`await eventually(condition, timeout_s=10)`: the condition's first true value, or a failure."""
    return _eventually


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Valkey of this test process, which dies with it; its URL."""
    from router.tools.local_valkey import start_valkey
    from router.tools.processes import stop_all

    server, url = start_valkey(tmp_path_factory.mktemp("valkey"))
    try:
        yield url
    finally:
        stop_all([server])


@pytest.fixture
def redis_url(valkey_server: str) -> str:
    """The URL of an empty Valkey."""
    import redis

    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    return valkey_server
