"""The HTTP interface where the recordings do not reach: streams, stops, keys, ranks, adapters, clients that leave."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme

Start = Callable[..., Any]
Eventually = Callable[..., Awaitable[Any]]
FAST = ("--decode-step-s", "0.001", "--prefill-tokens-per-s", "1000000")


def completion(prompt: Any, max_tokens: int = 5, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}


def streamed(data: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream that ended well."""
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_goes_on_with_the_tokens_it_was_answered_with(engine: Any) -> None:
    """Answers survive the way through text: the next turn hits all whole blocks of prompt and answer."""
    messages = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "What is a block?"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 50, "return_token_ids": True}
    first = engine.post("/v1/chat/completions", body)
    choice = first["choices"][0]
    assert len(choice["token_ids"]) == first["usage"]["completion_tokens"] == 50
    messages = [*messages, choice["message"] | {"tool_calls": []}, {"role": "user", "content": "And a chain?"}]
    second = engine.post("/v1/chat/completions", {**body, "messages": messages})
    past = first["prompt_token_ids"] + choice["token_ids"]
    assert second["prompt_token_ids"][: len(past)] == past
    # All that was computed is cached: prompt and answer without its last token.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(past) - 1) // 16 * 16


def test_the_same_prompt_gets_the_same_answer_and_another_one_another(engine: Any) -> None:
    """Answers depend on prompt, seed and choice, streamed or not, and on nothing else."""
    text = engine.post("/v1/completions", completion("Say it", 20))["choices"][0]["text"]
    again = streamed(engine.send("POST", "/v1/completions", completion("Say it", 20, stream=True))[2])
    assert "".join(chunk["choices"][0]["text"] for chunk in again) == text
    assert engine.post("/v1/completions", completion("Say it", 20, seed=7))["choices"][0]["text"] != text
    assert engine.post("/v1/completions", completion("Say that", 20))["choices"][0]["text"] != text
    two = engine.post("/v1/completions", completion("Say it", 20, n=2, temperature=1))["choices"]
    assert two[0]["text"] == text != two[1]["text"]


def test_a_stop_string_ends_the_answer_before_it(engine: Any) -> None:
    """The text ends in front of it, in a stream too, though it spans tokens; with min_tokens it is passed over."""
    text = engine.post("/v1/completions", completion("Stop me", 20))["choices"][0]["text"]
    words = text.split(" ")
    stop = f"{words[3][-2:]} {words[4][:2]}"
    wanted = text[: text.index(stop)]
    choice = engine.post("/v1/completions", completion("Stop me", 20, stop=[stop]))["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (wanted, "stop", stop)
    chunks = streamed(engine.send("POST", "/v1/completions", completion("Stop me", 20, stop=stop, stream=True))[2])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == wanted
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    kept = engine.post("/v1/completions", completion("Stop me", 20, stop=stop, include_stop_str_in_output=True))
    assert kept["choices"][0]["text"] == wanted + stop
    longer = engine.post("/v1/completions", completion("Stop me", 20, stop=stop, min_tokens=19))
    assert longer["usage"]["completion_tokens"] == 20


def test_a_stop_token_ends_the_answer(engine: Any) -> None:
    """Its id is the stop reason, and it is part of the answer."""
    ids = engine.post("/v1/completions", completion("Tokens", 9, return_token_ids=True))["choices"][0]["token_ids"]
    body = completion("Tokens", 9, return_token_ids=True, stop_token_ids=[ids[4]])
    choice = engine.post("/v1/completions", body)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[4])
    assert choice["token_ids"] == ids[: ids.index(ids[4]) + 1]


def test_the_textbook_conversation_over_http(engine: Any) -> None:
    """48 of 70, 0 of 71, and a salt of its own, as token ids: the numbers that a router is checked against."""
    system, a, b = list(range(600, 650)), list(range(700, 720)), list(range(800, 820))

    def hit(prompt: list[int], **more: Any) -> tuple[int, int]:
        usage = engine.post("/v1/completions", completion(prompt, 1, **more))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    assert hit(system + a) == (0, 70)
    assert hit(system + b) == (48, 70)
    assert hit([9, *system, *a]) == (0, 71)
    assert hit(system + a, cache_salt="t") == (0, 70)
    assert hit(system + a, cache_salt="t") == (64, 70)
    assert hit(system + a, prompt_logprobs=1) == (0, 70)


def test_an_adapter_is_a_model_with_its_path_as_root_and_blocks_of_its_own(engine: Any) -> None:
    """/v1/models lists it under its base; its requests share no block with the base model's."""
    cards = {card["id"]: card for card in json.loads(engine.send("GET", "/v1/models")[2])["data"]}
    assert (cards["ad"]["root"], cards["ad"]["parent"]) == ("/adapters/ad", "tiny")
    assert (cards["tiny"]["root"], cards["tiny"]["parent"]) == ("/models/tiny", None)
    prompt = list(range(900, 970))
    hits = [
        engine.post("/v1/completions", completion(prompt) | {"model": model})["usage"]["prompt_tokens_details"]
        for model in ("tiny", "ad", "ad")
    ]
    assert [each["cached_tokens"] for each in hits] == [0, 0, 64]


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(completion("Hello")).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(completion("Hello")).encode(),
    ],
    ids=["utf-16", "bom"],
)
def test_a_body_in_another_unicode_is_read(engine: Any, data: bytes) -> None:
    """The engine's JSON reader finds out the encoding."""
    status, _, answer = engine.send("POST", "/v1/completions", data, {"Content-Type": "application/json"})
    assert status == 200, answer


def test_a_body_that_is_really_gzip_is_a_400(engine: Any) -> None:
    """Request bodies are not decompressed."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    data = gzip.compress(json.dumps(completion("Hello")).encode())
    status, _, answer = engine.send("POST", "/v1/completions", data, headers)
    assert status == 400
    assert json.loads(answer)["error"]["message"] == "There was an error parsing the body"


def test_of_duplicate_keys_the_last_one_holds(engine: Any) -> None:
    """Also where it is spelled with escapes."""
    body = b'{"model": "tiny", "prompt": "Hi", "max_tokens": 9, "m\\u0061x_tokens": 2}'
    status, _, answer = engine.send("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 2)


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_a_deeply_nested_body_is_a_400(engine: Any, depth: int) -> None:
    """It costs an error, not the process."""
    body = b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"
    assert engine.send("POST", "/v1/completions", body, {"Content-Type": "application/json"})[0] == 400
    assert engine.send("GET", "/health")[0] == 200


def test_the_key_guards_v1_alone(start_engine: Start) -> None:
    """Without it /v1 is a 401; metrics, tokenizer and event sources stay open."""
    engine = start_engine("--api-key", "secret", *FAST)
    body = completion("Hello")
    assert engine.send("POST", "/v1/completions", body)[0] == 401
    assert engine.send("POST", "/v1/completions", body, {"Authorization": "Bearer other"})[0] == 401
    assert engine.send("GET", "/v1/models")[0] == 401
    assert engine.send("POST", "/v1/completions", body, {"Authorization": "Bearer secret"})[0] == 200
    for path in ("/metrics", "/health", "/kv_event_sources", "/version"):
        assert engine.send("GET", path)[0] == 200
    assert engine.send("POST", "/tokenize", {"prompt": "Hello"})[0] == 200


def test_cached_tokens_are_left_out_when_the_engine_is_told_so(start_engine: Start) -> None:
    """As in a vLLM that was started without --enable-prompt-tokens-details, streamed or not."""
    engine = start_engine("--no-enable-prompt-tokens-details", *FAST)
    assert engine.post("/v1/completions", completion("Hello"))["usage"]["prompt_tokens_details"] is None
    body = completion("Hello", stream=True, stream_options={"include_usage": True})
    last = streamed(engine.send("POST", "/v1/completions", body)[2])[-1]
    assert last["choices"] == []
    assert "prompt_tokens_details" not in last["usage"]


async def test_a_client_that_leaves_stops_its_generation(start_engine: Start, eventually: Eventually) -> None:
    """A stream that is dropped after its first bytes, and an answer that nobody waits for, free their seats."""
    engine = start_engine("--decode-step-s", "0.01")
    for stream in (True, False):
        body = completion("Hello", 20_000, stream=stream)
        async with aiohttp.ClientSession() as session:
            asked = asyncio.create_task(session.post(f"{engine.url}/v1/completions", json=body))
            await eventually(lambda: engine.metric("vllm:num_requests_running") == 1)
            if stream:
                assert await (await asked).content.readany()
            else:
                asked.cancel()
        await eventually(lambda: engine.metric("vllm:num_requests_running") == 0)
    assert engine.metric("vllm:kv_cache_usage_perc") == 0


async def test_a_stream_flows_token_by_token(start_engine: Start) -> None:
    """The head and the first token come long before the last one; each token is a chunk of its own."""
    engine = start_engine("--decode-step-s", "0.02")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine.url}/v1/completions", json=completion("Hello", 50, stream=True)) as answer,
    ):
        first = await answer.content.readuntil(b"\n\n")
        begun = time.monotonic()
        rest = await answer.read()
        assert time.monotonic() - begun > 0.7  # 49 steps of 20 ms
    assert len(streamed(first + rest)) == 50


def test_time_scale_makes_virtual_time_pass_faster(start_engine: Start) -> None:
    """100 steps of half a virtual second take about half a second at a scale of 100, never less."""
    engine = start_engine("--decode-step-s", "0.5", "--time-scale", "100")
    begun = time.monotonic()
    engine.post("/v1/completions", completion("Hello", 100))
    assert 0.49 < time.monotonic() - begun < 10


def test_ranks_have_caches_of_their_own_and_the_header_chooses_one(start_engine: Start) -> None:
    """A prompt sent to rank 1 twice hits there and not on rank 0; a rank that there is not is a 400."""
    engine = start_engine("--data-parallel-size", "2", *FAST)
    assert len(engine.events) == len(engine.replay) == 2

    def hit(rank: int) -> int:
        body = completion(list(range(100, 170)))
        usage = engine.post("/v1/completions", body, {"X-data-parallel-rank": str(rank)})["usage"]
        cached: int = usage["prompt_tokens_details"]["cached_tokens"]
        return cached

    assert [hit(1), hit(1), hit(0)] == [0, 64, 0]
    assert engine.send("POST", "/v1/completions", completion("Hi"), {"X-data-parallel-rank": "2"})[0] == 400
    assert set(json.loads(engine.send("GET", "/kv_event_sources")[2])) == {"0", "1"}
    assert engine.metric("vllm:prefix_cache_queries_total", rank=1) == 140


def test_without_the_header_idle_ranks_take_turns(start_engine: Start) -> None:
    """Four requests one after the other go to both of two ranks."""
    engine = start_engine("--data-parallel-size", "2", *FAST)
    for _ in range(4):
        engine.post("/v1/completions", completion("Hello", 1))
    assert [engine.metric("vllm:generation_tokens_total", rank) for rank in (0, 1)] == [2, 2]


def test_metrics_say_what_a_router_reads(start_engine: Start) -> None:
    """Queried and hit tokens, and the cache's configuration with vLLM's labels."""
    engine = start_engine("--num-blocks", "100", "--hash-algo", "sha256_cbor", *FAST)
    for _ in range(2):
        engine.post("/v1/completions", completion(list(range(100, 170))))
    assert engine.metric("vllm:prefix_cache_queries_total") == 140
    assert engine.metric("vllm:prefix_cache_hits_total") == 64
    assert engine.metric("vllm:num_requests_waiting") == 0
    text = engine.send("GET", "/metrics")[2].decode()
    labels = (
        'block_size="16"',
        'num_gpu_blocks="100"',
        'prefix_caching_hash_algo="sha256_cbor"',
        'enable_prefix_caching="True"',
    )
    line = next(each for each in text.splitlines() if each.startswith("vllm:cache_config_info{"))
    assert all(label in line for label in labels)
    assert line.endswith(" 1.0")


async def test_the_cache_is_not_reset_while_requests_hold_it(start_engine: Start, eventually: Eventually) -> None:
    """It says so; once they are gone it is."""
    engine = start_engine("--decode-step-s", "0.01")
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.post(f"{engine.url}/v1/completions", json=completion("Hello", 20_000)))
        await eventually(lambda: engine.metric("vllm:num_requests_running") == 1)
        assert engine.post("/reset_prefix_cache", b"") == {"success": False}
        asked.cancel()
    await eventually(lambda: engine.metric("vllm:num_requests_running") == 0)
    assert engine.post("/reset_prefix_cache", b"") == {"success": True}


@pytest.mark.slow
def test_an_idle_connection_is_closed_after_five_seconds(engine: Any) -> None:
    """Kept alive for the next request, but not for ever."""
    address = urlsplit(engine.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        assert connection.recv(4096) == b""
        assert 4 < time.monotonic() - begun < 30


def test_an_http_1_0_client_gets_a_stream_without_chunks(engine: Any) -> None:
    """The answer ends with the connection."""
    address = urlsplit(engine.url)
    body = json.dumps(completion("Hello", 3, stream=True)).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert len(streamed(answer.split(b"\r\n\r\n", 1)[1])) == 3


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"model": "tiny", "prompt": "\\ud800"}'),
        ("/v1/completions", b'{"model": "tiny", "prompt": "x", "max_tokens": ' + b"9" * 5_000 + b"}"),
        ("/v1/completions", b'{"model": "tiny", "prompt": "x", "temperature": ' + b"9" * 400 + b"}"),
        ("/v1/completions", b'{"model": "tiny", "prompt": ' + b"[" * 500 + b"]" * 500 + b"}"),
        ("/v1/completions", b'{"model": "tiny", "prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": [1]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": nested(500)}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": nested(500)}]}]}),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\\udfff"}]}'),
    ],
)
def test_odd_values_are_refused_in_the_engine_s_shape(engine: Any, path: str, body: Any) -> None:
    """What a client sends never makes an error of the engine's own."""
    status, headers, data = engine.send("POST", path, body, {"Content-Type": "application/json"})
    assert status == 400, data
    assert headers["content-type"].startswith("application/json")
    assert json.loads(data)["error"]["code"] == 400


def test_a_text_of_more_characters_than_fit_is_refused_without_being_tokenised(engine: Any) -> None:
    """30 MiB for 32,768 tokens: the engine counts characters first (vLLM: renderers/params.py, _text_len_check)."""
    begun_s = time.monotonic()
    status, _, data = engine.send("POST", "/v1/completions", {"model": "tiny", "prompt": "word " * 6 * 2**20})
    assert status == 400
    assert "31457280 characters" in json.loads(data)["error"]["message"]
    assert time.monotonic() - begun_s < 5


def test_the_pool_itself_tells_what_it_holds(start_engine: Start) -> None:
    """`/debug/blocks` has every block that a prompt left, by its name in events, and nothing after a reset."""
    engine = start_engine(*FAST, "--hash-algo", "sha256_cbor", "--block-size", "16")
    assert json.loads(engine.send("GET", "/debug/blocks")[2]) == {"ranks": [{"busy": False, "blocks": {}}]}
    engine.post("/v1/completions", completion(list(range(100, 150)), max_tokens=1))
    held = json.loads(engine.send("GET", "/debug/blocks")[2])["ranks"][0]
    hashes = chain(list(range(100, 148)), Scheme(HashAlgorithm.SHA256_CBOR, 16))
    assert held["blocks"] == {f"{name:016x}": 1 for name in hashes}
    engine.post("/reset_prefix_cache", {})
    assert json.loads(engine.send("GET", "/debug/blocks")[2])["ranks"][0]["blocks"] == {}
