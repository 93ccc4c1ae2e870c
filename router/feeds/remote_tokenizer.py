"""Asks a replica's `/tokenize` about prompts of models that the router has no tokenizer for.

Bounded in time and in number, since every such request waits for it: past the deadline, or when as many are asked
already, the prompt is placed by load.
"""

from __future__ import annotations

import asyncio

import aiohttp

from router.request.remote import PATH, Question, ids_in

MAX_ANSWER_BYTES = 32 * 2**20
_HEADERS = {"content-type": "application/json"}


class ReplicaTokenizer:
    """`router.request.remote.RemoteTokenizer` over one HTTP session.

    Args:
        timeout_s: For a question as a whole.
        at_once: Questions under way; one more is not asked.
    """

    def __init__(self, session: aiohttp.ClientSession, timeout_s: float = 0.25, at_once: int = 16) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._at_once = at_once
        self.asking = 0

    async def token_ids(self, url: str, question: Question) -> list[int] | None:
        """Return the ids that a replica answers; None when it does not in time, refuses, or is not asked.

        Args:
            url: The replica's, http://HOST:PORT.
        """
        if self.asking >= self._at_once:
            return None
        self.asking += 1
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(
                    f"{url}{PATH}", data=question.body, headers=_HEADERS, allow_redirects=False
                ) as answer,
            ):
                if answer.status != 200:
                    return None
                body = bytearray()
                async for part in answer.content.iter_chunked(65_536):
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        return None
            return ids_in(bytes(body))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None
        finally:
            self.asking -= 1
