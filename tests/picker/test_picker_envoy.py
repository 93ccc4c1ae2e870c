"""The picker through a real Envoy: chats, streams, large bodies, what is refused, and its own absence."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from router.tools.processes import wait_for
from tests.http_client import Client

Make = Callable[..., Any]
BLOCK_TOKENS = 16


def send(
    url: str, path: str, body: object = None, method: str = "POST", **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Send a request; return status, headers and the body, as JSON where it is JSON."""
    return Client(url).send(method, path, body, **headers)


def chat(text: str, **changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **changes}


def long_text(seed: str, words: int = 400) -> str:
    return " ".join(f"{seed}{number}" for number in range(words))


def blocks(picker: Any) -> int:
    """How many blocks the picker's index holds, of all units."""
    replicas = picker.read("/admin/replicas")["replicas"]
    return sum(unit["blocks"] for replica in replicas for unit in replica["units"])


@pytest.fixture(scope="module")
def picker(new_picker: Make) -> Any:
    """A picker that stays."""
    return new_picker()


@pytest.fixture(scope="module")
def envoy(new_envoy: Make, picker: Any) -> Any:
    """An Envoy as the Inference Extension sets it up."""
    return new_envoy(picker)


def test_equal_prefixes_meet(envoy: Any, picker: Any) -> None:
    """What was sent before goes where it is cached, as predicted, and is delivered from the cache there."""
    for seed in ("a", "b", "c", "d"):
        body, before = chat(long_text(seed)), blocks(picker)
        status, first, answer = send(envoy.url, "/v1/chat/completions", body)
        assert status == 200
        # The engine's events come to the picker by way of its agent and Redis. The first block may be known already.
        whole = answer["usage"]["prompt_tokens"] // BLOCK_TOKENS
        wait_for("its blocks in the index", lambda wanted=before + whole - 1: blocks(picker) >= wanted, [], 20)
        status, second, answer = send(envoy.url, "/v1/chat/completions", body)
        assert (status, second["x-warmroute-replica"]) == (200, first["x-warmroute-replica"])
        delivered = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert int(second["x-warmroute-matched-tokens"]) == delivered > 300


@pytest.mark.parametrize("mode", ["BUFFERED", "BUFFERED_PARTIAL"])
def test_buffered_bodies_are_read_too(new_envoy: Make, picker: Any, mode: str) -> None:
    """A gateway that buffers gets its endpoint with the body: equal prefixes meet there as well."""
    envoy, body = new_envoy(picker, mode=mode), chat(long_text(mode))
    replicas = set()

    def is_matched() -> bool:
        status, headers, _ = send(envoy.url, "/v1/chat/completions", body)
        assert status == 200
        replicas.add(headers["x-warmroute-replica"])
        return int(headers["x-warmroute-matched-tokens"]) > 300

    wait_for("the match", is_matched, [], 20)
    assert len(replicas) == 1


@pytest.mark.parametrize("mode", ["NONE", "STREAMED"])
def test_unread_bodies_are_placed_by_load(new_envoy: Make, picker: Any, mode: str) -> None:
    """Where the head must be answered before the body comes, requests are served, and nothing is matched."""
    envoy, body = new_envoy(picker, mode=mode), chat(long_text(mode))
    for _ in range(3):
        status, headers, answer = send(envoy.url, "/v1/chat/completions", body)
        assert status == 200
        assert answer["choices"]
        assert headers["x-warmroute-matched-tokens"] == "0"


def test_request_without_a_body(envoy: Any) -> None:
    """GET goes to some replica."""
    status, headers, answer = send(envoy.url, "/v1/models", method="GET")
    assert status == 200
    assert [model["id"] for model in answer["data"]] == ["tiny"]
    assert headers["x-warmroute-replica"]


def test_stream_is_the_engines(envoy: Any, picker: Any) -> None:
    """Server-sent events pass to their end; the picker records status and the answer's beginning, and sees no chunk."""
    status, headers, data = send(
        envoy.url, "/v1/chat/completions", chat("stream", stream=True, max_tokens=40), x_request_id="stream-1"
    )
    assert status == 200
    events = [line for line in data.decode().split("\n\n") if line]
    assert events[-1] == "data: [DONE]"
    assert len(events) > 40
    # The answer's end passes through Envoy before the picker hears of it.
    wait_for("the outcome", lambda: picker.read("/admin/decisions/stream-1")["outcome"], [], 20)
    decision = picker.read("/admin/decisions/stream-1")
    assert decision["outcome"]["status"] == 200
    assert decision["outcome"]["ttft_s"] > 0
    assert decision["winner"].startswith(headers["x-warmroute-replica"])


def test_decisions_are_explained(envoy: Any, picker: Any) -> None:
    """As the router's: by request id, with every candidate's terms; in the answer's head when asked for."""
    body = chat(long_text("why"))
    send(envoy.url, "/v1/chat/completions", body)
    _, headers, _ = send(envoy.url, "/v1/chat/completions", body, x_request_id="why-1", x_warmroute_explain="1")
    wait_for("the outcome", lambda: picker.read("/admin/decisions/why-1")["outcome"], [], 20)
    decision = picker.read("/admin/decisions/why-1")
    assert not decision["outcome"].get("aborted"), "Envoy resets its question to the picker when an answer has ended"
    assert len(decision["candidates"]) == 3
    assert decision["matched_tokens"] == int(headers["x-warmroute-matched-tokens"])
    assert json.loads(headers["x-warmroute-explain"])["winner"] == decision["winner"]


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_large_body_arrives_whole(new_envoy: Make, picker: Any, mode: str) -> None:
    """800 KB, which crosses in many pieces: the engine counts every token of it."""
    envoy = new_envoy(picker, mode=mode)
    ids = [number % 200 + 10 for number in range(7_000)]
    body = json.dumps({"model": "tiny", "prompt": ids, "max_tokens": 1, "user": "x" * 800_000}).encode()
    status, _, answer = send(envoy.url, "/v1/completions", body)
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == 7_000


def test_subset_is_kept_to(new_envoy: Make, picker: Any, fleet: Any) -> None:
    """Only endpoints that the gateway names are chosen; where it names none of the fleet's, that is a 503."""
    allowed = fleet.engines[1].http.removeprefix("http://")
    envoy = new_envoy(picker, subset=[allowed])
    for seed in range(4):
        status, headers, _ = send(envoy.url, "/v1/chat/completions", chat(f"subset {seed}"), x_request_id=f"s-{seed}")
        assert status == 200
        urls = {item["replica"]: item["url"] for item in picker.read("/admin/replicas")["replicas"]}
        assert urls[headers["x-warmroute-replica"]] == f"http://{allowed}"
    nowhere = new_envoy(picker, subset=["192.0.2.1:8000"])
    status, headers, answer = send(nowhere.url, "/v1/chat/completions", chat("nowhere"))
    assert status == 503
    assert answer["error"]["code"] == "no_replica_available"
    assert headers["x-request-id"]


def test_fallbacks_take_the_place_of_what_the_gateway_lacks(envoy: Any, new_envoy: Make, picker: Any) -> None:
    """Where it does not have the chosen endpoint any more, the request goes to the next best, not to just any."""
    body = chat(long_text("fallback"))
    winner = send(envoy.url, "/v1/chat/completions", body)[1]["x-warmroute-replica"]
    again = partial(send, envoy.url, "/v1/chat/completions", body)
    wait_for("the match", lambda: again()[1]["x-warmroute-matched-tokens"] != "0", [], 20)
    lacking = new_envoy(picker, without=int(winner.removeprefix("r")))
    urls = {item["replica"]: item["url"].removeprefix("http://") for item in picker.read("/admin/replicas")["replicas"]}
    before = served(lacking)
    status, headers, _ = send(lacking.url, "/v1/chat/completions", body, x_request_id="fallback-1")
    assert (status, headers["x-warmroute-replica"]) == (200, winner)
    candidates = picker.read("/admin/decisions/fallback-1")["candidates"]
    second, _ = [candidate for candidate in candidates if candidate["replica"] != winner]  # the cheapest first
    after = served(lacking)
    (grown,) = [address for address, count in after.items() if count > before.get(address, 0)]
    assert grown == urls[second["replica"]]


def served(envoy: Any) -> dict[str, int]:
    """Requests that Envoy sent to each engine."""
    lines = [line.split("::") for line in envoy.read("/clusters").splitlines()]
    return {parts[1]: int(parts[3]) for parts in lines if parts[0] == "engines" and parts[2] == "rq_total"}


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/chat/completions", {"model": "other", "messages": []}, 404, "model_not_found"),
        ("/reset_prefix_cache", {}, 404, "path_not_found"),
        ("/v1/../reset_prefix_cache", {}, 404, "path_not_found"),
    ],
)
def test_refusals(envoy: Any, picker: Any, path: str, body: object, status: int, code: str) -> None:
    """What no replica may answer, the picker does: OpenAI's error shape, with a request id, counted."""
    found, headers, answer = send(envoy.url, path, body)
    assert (found, answer["error"]["code"]) == (status, code)
    assert headers["x-request-id"]
    assert f'warmroute_errors_total{{code="{code}"}}' in picker.read("/metrics")


def test_client_that_leaves_gives_its_place_back(envoy: Any, picker: Any) -> None:
    """A request that is cut counts at its replica no longer, and is recorded."""
    connection = http.client.HTTPConnection(envoy.url.removeprefix("http://"))
    body = json.dumps(chat("leaves", stream=True, max_tokens=2_000, ignore_eos=True))
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", "x-request-id": "l1"})
    connection.getresponse().read(10)
    connection.close()

    def is_over() -> bool:
        units = [unit for item in picker.read("/admin/replicas")["replicas"] for unit in item["units"]]
        return not any(unit["requests"] for unit in units)

    wait_for("its end", is_over, [], 20)
    assert picker.read("/admin/decisions/l1")["outcome"] is not None


def test_answers_bodies_pass_where_the_gateway_sends_them(new_envoy: Make, picker: Any) -> None:
    """A gateway set to send the answer's body too gets it back byte for byte."""
    envoy = new_envoy(picker, response_mode="FULL_DUPLEX_STREAMED")
    status, _, data = send(envoy.url, "/v1/chat/completions", chat("duplex", stream=True, max_tokens=20))
    assert status == 200
    assert data.decode().endswith("data: [DONE]\n\n")


def test_full_replicas_are_429(new_picker: Make, new_envoy: Make) -> None:
    """The protocol's word for saturation; 503 is for no endpoint at all."""
    picker = new_picker(limits={"max_in_flight": 1, "queue_requests": 1}, timeouts={"queue_s": 0.3})
    envoy = new_envoy(picker)
    started = [start_stream(envoy.url, f"full {number}") for number in range(3)]
    try:
        wait_for("three streams", lambda: in_flight(picker) == 3, [], 20)
        status, headers, answer = send(envoy.url, "/v1/chat/completions", chat("one more"))
        assert status == 429
        assert answer["error"]["code"] == "queue_timeout"
        assert headers["retry-after"]
    finally:
        for connection in started:
            connection.close()


def start_stream(url: str, text: str) -> http.client.HTTPConnection:
    """Begin a long stream and leave it open."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    body = json.dumps(chat(text, stream=True, max_tokens=5_000, ignore_eos=True))
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    connection.getresponse()
    return connection


def in_flight(picker: Any) -> int:
    return sum(unit["requests"] for item in picker.read("/admin/replicas")["replicas"] for unit in item["units"])


@pytest.mark.parametrize("fail_open", [True, False], ids=["FailOpen", "FailClose"])
def test_a_picker_that_is_gone(new_picker: Make, new_envoy: Make, fail_open: bool) -> None:
    """FailOpen: the gateway balances by itself. FailClose: it refuses. Both end when the picker is back."""
    picker = new_picker()
    # Envoy fails open only where it still has the body: not in the duplex mode, which gives it away at once.
    envoy = new_envoy(picker, fail_open=fail_open, mode="BUFFERED" if fail_open else "FULL_DUPLEX_STREAMED")
    assert send(envoy.url, "/v1/chat/completions", chat("before"))[1]["x-warmroute-replica"]
    picker.child.kill()
    picker.child.wait(10)
    for _ in range(3):
        status, headers, _ = send(envoy.url, "/v1/chat/completions", chat("without"))
        assert status == (200 if fail_open else 500)
        assert "x-warmroute-replica" not in headers
    picker.start()
    wait_for(
        "the picker", lambda: "x-warmroute-replica" in send(envoy.url, "/v1/chat/completions", chat("after"))[1], [], 20
    )


def test_a_picker_that_leaves_finishes(new_picker: Make, new_envoy: Make) -> None:
    """SIGTERM: the stream that runs goes on to its end, and the picker ends with 0."""
    picker = new_picker()
    envoy = new_envoy(picker)
    data: list[bytes] = []

    def read() -> None:
        body = chat("leaving", stream=True, max_tokens=300, ignore_eos=True)
        data.append(send(envoy.url, "/v1/chat/completions", body)[2])

    thread = threading.Thread(target=read)
    thread.start()
    wait_for("the stream", lambda: in_flight(picker) == 1, [], 20)
    picker.child.signal(signal.SIGTERM)
    assert picker.child.wait(20) == 0
    thread.join(20)
    assert data[0].decode().endswith("data: [DONE]\n\n")


def test_reload(new_picker: Make, new_envoy: Make) -> None:
    """A changed file takes effect without a restart: another policy decides."""
    picker = new_picker()
    envoy = new_envoy(picker)
    picker.file.write_text(json.dumps({**picker.config, "placement": {"policy": "round-robin"}}))
    wait_for("the reload", lambda: picker.read("/admin/config")["reload"]["result"] == "applied", [], 20)
    body = chat(long_text("reload"))
    replicas = {send(envoy.url, "/v1/chat/completions", body)[1]["x-warmroute-replica"] for _ in range(3)}
    assert len(replicas) == 3
