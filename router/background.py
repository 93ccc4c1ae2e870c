"""Work beside the requests: it may fail, and must not end the router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

RESTART_S = 1.0

LOG = logging.getLogger("warmroute.app")


async def run_again(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run until cancelled; begin anew when it stops by a fault of ours, which only makes routing less warm."""
    while True:
        try:
            await run()
        except Exception:
            LOG.exception("the %s stopped by a fault of its own and is started again", name)
        await asyncio.sleep(RESTART_S)
