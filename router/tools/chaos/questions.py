"""Questions to routers and engines, which may be away."""

from __future__ import annotations

from typing import Any

import aiohttp

TIMEOUT_S = 3.0


async def get_json(client: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Return the JSON object of a 200, else an empty one."""
    try:
        async with client.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as answer:
            found = await answer.json() if answer.status == 200 else {}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
