"""How long a block takes from an engine's event to the router's index.

We subscribe to an engine's events as its agent does, send it a prompt nobody has seen, and from the moment the event
arrives ask the router, again and again, what it would find of this prompt. The figure holds one such question (about a
millisecond), so the true one is a little lower.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from typing import Any

import zmq

from loadtest.workloads.answers import chat_body
from loadtest.workloads.text import TextMaker
from router.tools.local_fleet import LocalFleet, Server

PROMPT_TOKENS = 64
TIMEOUT_S = 5.0
HEADERS = {"content-type": "application/json"}


def event_to_index_lags_s(fleet: LocalFleet, maker: TextMaker, probes: int) -> list[float]:
    """Return the seconds from event to index of `probes` prompts, one after the other, over all engines in turn.

    The fleet needs agents; meant for one without other traffic.

    Raises:
        TimeoutError: An event, or the router's knowledge of it, did not come within 5 s.
    """
    lags_s: list[float] = []
    rng = random.Random("event to index")
    router = http.client.HTTPConnection(_address(fleet.router.http), timeout=TIMEOUT_S)
    with zmq.Context() as context:
        for engine in fleet.engines:
            with context.socket(zmq.SUB) as events:
                _subscribe(events, engine, fleet.engine_options.model, maker, rng)
                for _ in range(max(1, probes // len(fleet.engines))):
                    body = _body(fleet.engine_options.model, maker.make(PROMPT_TOKENS, rng))
                    lags_s.append(_probe(router, engine, events, body))
    router.close()
    return lags_s


def _subscribe(events: zmq.Socket[bytes], engine: Server, model: str, maker: TextMaker, rng: random.Random) -> None:
    """Subscribe, and return when events arrive: a subscription takes a moment that no answer confirms."""
    events.linger = 0
    events.subscribe(b"")
    events.connect(engine.events)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not events.poll(20):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no events from {engine.events}")
        _finish(_ask(engine, _body(model, maker.make(PROMPT_TOKENS, rng))))
    while events.poll(100):  # what the warming prompts stored
        events.recv_multipart()


def _probe(
    router: http.client.HTTPConnection, engine: Server, events: zmq.Socket[bytes], body: dict[str, Any]
) -> float:
    answer = _ask(engine, body)
    try:
        if not events.poll(int(TIMEOUT_S * 1000)):
            raise TimeoutError(f"no event from {engine.events}")
        arrived_s = time.monotonic()
        events.recv_multipart()
        while _available_tokens(router, body) == 0:
            if time.monotonic() - arrived_s > TIMEOUT_S:
                raise TimeoutError("the router does not learn of a block")
        return time.monotonic() - arrived_s
    finally:
        _finish(answer)


def _ask(engine: Server, body: dict[str, Any]) -> http.client.HTTPConnection:
    """Send a request and leave its answer unread."""
    connection = http.client.HTTPConnection(_address(engine.http), timeout=TIMEOUT_S)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
    return connection


def _finish(connection: http.client.HTTPConnection) -> None:
    connection.getresponse().read()
    connection.close()


def _available_tokens(router: http.client.HTTPConnection, body: dict[str, Any]) -> int:
    router.request("POST", "/admin/explain", json.dumps(body), HEADERS)
    return int(json.load(router.getresponse())["available_tokens"])


def _body(model: str, text: str) -> dict[str, Any]:
    return chat_body(model, [{"role": "user", "content": text}], answer_tokens=1)


def _address(url: str) -> str:
    return url.removeprefix("http://")
