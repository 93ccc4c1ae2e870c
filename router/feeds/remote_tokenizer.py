"""Asks a replica about prompts that it alone can tell of: its `/tokenize` or its `/render`.

Network alone: for how long and how many at once is for whoever asks (`router.proxy.remote_reading`).
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from router.request.reasons import NotUnderstoodError, Reason
from router.request.remote import NotServedError, Question
from router.tls import EngineTls

MAX_ANSWER_BYTES = 32 * 2**20
_NOT_SERVED = (404, 405)
_HEADERS = {"content-type": "application/json"}


def open_session(idle_s: float) -> aiohttp.ClientSession:
    """Return a session for questions: no bound of its own, no cookies.

    Args:
        idle_s: An idle connection is kept for this long; less than the engine keeps it, or questions get lost.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=idle_s)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class ReplicaTokenizer:
    """`router.request.remote.RemoteTokenizer` over one HTTP session.

    Args:
        tls: How to speak to engines at https:// addresses; None: by the system's CAs.
        headers: Sent with each question: the engines' API key. May change.
    """

    def __init__(
        self, session: aiohttp.ClientSession, tls: EngineTls | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._tls = tls
        self._headers = {} if headers is None else headers
        self._session = session

    async def ask(self, url: str, question: Question) -> bytes:
        """Return the body that a replica answers.

        Args:
            url: The replica's, http://HOST:PORT or https://HOST:PORT.

        Raises:
            NotServedError: It has no such path (404, 405).
            NotUnderstoodError: REMOTE_REFUSED for another status than 200; REMOTE_FAILED when it can't be reached,
                breaks off or answers without end.
        """
        try:
            secured = self._tls.options(url) if self._tls is not None else {}
            headers = {**_HEADERS, **self._headers}
            async with self._session.post(
                f"{url}{question.path}", data=question.body, headers=headers, allow_redirects=False, **secured
            ) as answer:
                if answer.status in _NOT_SERVED:
                    raise NotServedError
                if answer.status != 200:
                    raise NotUnderstoodError(Reason.REMOTE_REFUSED)
                body = bytearray()
                async for part in answer.content.iter_chunked(65_536):
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise NotUnderstoodError(Reason.REMOTE_FAILED)
            return bytes(body)
        except (aiohttp.ClientError, OSError, ValueError):
            raise NotUnderstoodError(Reason.REMOTE_FAILED) from None
