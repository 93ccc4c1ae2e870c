"""Requests of the router's own to engines, to have a beginning of prompts computed. Network alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import orjson

from router.index.hot_prefixes import HotPrefix
from router.tls import EngineTls

PATH = "/v1/completions"
MAX_ANSWER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Computed:
    """What an engine answered.

    Attributes:
        status: Its HTTP status; None when it could not be reached, or spoke nonsense.
        cached_tokens: What it had already; None when it did not say.
    """

    status: int | None
    cached_tokens: int | None = None


class AsksEngines(Protocol):
    """Has an engine compute."""

    async def compute(self, url: str, rank: int | None, prefix: HotPrefix, request_id: str) -> Computed:
        """Return what came of it; never raises for what an engine does."""


class EngineRequests:
    """`AsksEngines` over one HTTP session.

    Args:
        tls: How to speak to engines at https:// addresses.
        headers: Sent with each request: the engines' API key. May change.
    """

    def __init__(self, session: aiohttp.ClientSession, tls: EngineTls, headers: Mapping[str, str]) -> None:
        self._session = session
        self._tls = tls
        self._headers = headers

    async def compute(self, url: str, rank: int | None, prefix: HotPrefix, request_id: str) -> Computed:
        """Send the prefix as token ids, for one token of answer."""
        headers = {"content-type": "application/json", "x-request-id": request_id, **self._headers}
        if rank is not None:
            headers["x-data-parallel-rank"] = str(rank)
        body: dict[str, Any] = {"model": prefix.model, "prompt": list(prefix.token_ids), "max_tokens": 1}
        if prefix.salt is not None:
            body["cache_salt"] = prefix.salt
        try:
            async with self._session.post(
                f"{url}{PATH}",
                data=orjson.dumps(body),
                headers=headers,
                allow_redirects=False,
                **self._tls.options(url),
            ) as answer:
                data = await answer.content.read(MAX_ANSWER_BYTES)
                return Computed(answer.status, _cached_tokens(data) if answer.status == 200 else None)
        except (aiohttp.ClientError, OSError, ValueError):
            return Computed(None)


def _cached_tokens(data: bytes) -> int | None:
    try:
        details = orjson.loads(data)["usage"]["prompt_tokens_details"]
        return details["cached_tokens"] if type(details["cached_tokens"]) is int else None
    except (ValueError, KeyError, TypeError):
        return None
