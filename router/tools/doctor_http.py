"""A small HTTP client for looking at routers and engines: one request a connection, nothing kept, nothing raised."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes:
        status: HTTP status; 0 when there was no answer, and then `error` says why.
        body: The whole body.
        clock_ahead_s: How far the server's Date is ahead of this machine's clock, in seconds; the header has whole
            seconds, so it is right to about one. None without a Date.
        error: In words; empty when it answered.
    """

    status: int
    body: bytes = field(default=b"", repr=False)
    clock_ahead_s: float | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the status is 200."""
        return self.status == 200

    @property
    def json(self) -> Any:
        """The body as JSON, or None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def object(self) -> dict[str, Any]:
        """Return the body's JSON object; an empty one when the status is not 200 or it is none."""
        value = self.json if self.ok else None
        return value if isinstance(value, dict) else {}

    def why(self) -> str:
        """Tell in words why it is not 200."""
        if not self.status:
            return self.error
        value = self.json
        error = value.get("error") if isinstance(value, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        return f"answered {self.status}" + (f": {str(message)[:200]}" if message else "")


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask.

    Attributes:
        url: `http://HOST:PORT` or `https://HOST:PORT`, perhaps with a path in front of all others.
        token: Sent as a bearer token; None: none.
    """

    url: str
    token: str | None = field(default=None, repr=False)

    def get(self, path: str, timeout_s: float = TIMEOUT_S) -> Answer:
        """GET a path."""
        return self._ask("GET", path, None, {}, timeout_s)

    def post(self, path: str, body: Any, timeout_s: float = TIMEOUT_S, **headers: str) -> Answer:
        """POST a body (bytes as they are, anything else as JSON); `_` in a header's name stands for `-`."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._ask("POST", path, data, {"content-type": "application/json", **names}, timeout_s)

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float) -> Answer:
        parts = urlsplit(self.url)
        if self.token is not None:
            headers = {**headers, "authorization": f"Bearer {self.token}"}
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, timeout_s)
        try:
            begun_s = time.time()
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            middle_s = (begun_s + time.time()) / 2
            data = response.read(MAX_ANSWER_BYTES)
            return Answer(response.status, data, _ahead(response.headers.get("date"), middle_s))
        except TimeoutError:
            return Answer(0, error=f"no answer within {timeout_s:g} s")
        except ConnectionRefusedError:
            return Answer(0, error="connection refused: nothing listens there")
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Answer(0, error=str(error) or type(error).__name__)
        finally:
            connection.close()


def _connection(scheme: str, host: str, port: int | None, timeout_s: float) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def _ahead(date: str | None, at_unix_s: float) -> float | None:
    if date is None:
        return None
    try:
        # The header's second began up to a second before it was written.
        return parsedate_to_datetime(date).timestamp() + 0.5 - at_unix_s
    except ValueError:
        return None
