"""A client that needs nothing of the project: plain HTTP, a connection for each request."""

from __future__ import annotations

import http.client
import json
from typing import Any


class Client:
    """Speaks to one router over plain HTTP, a connection for each request."""

    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Send a request; return status, headers (lower case) and the body, as JSON where it is JSON."""
        connection = self.connection()
        payload = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, payload, {"content-type": "application/json", **names})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        is_json = found.get("content-type", "").startswith("application/json")
        return response.status, found, json.loads(data) if is_json and data else data

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection that is not used yet."""
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)

    def chat(self, *contents: str, **changes: Any) -> tuple[str, int, int, dict[str, Any]]:
        """Send a chat, turns alternating from user; return replica, predicted and delivered tokens, and the answer."""
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(contents)]
        body = {"model": "tiny", "messages": messages, "max_tokens": 8, **changes}
        status, headers, answer = self.send("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        delivered = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return headers["x-warmroute-replica"], int(headers["x-warmroute-matched-tokens"]), delivered, answer
