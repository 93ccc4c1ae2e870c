"""The core held against what the real engine published and reported, batch by batch and byte by byte.

The requests behind each recording are not in it; they were worked out from its events. Times of arrival matter where
requests overlap, so each is given as the step before which it arrives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from replica.simengine.core.events import CacheEvent
from replica.simengine.core.hashing import Adapter, BlockHasher
from replica.simengine.core.request import Request
from replica.simengine.core.scheduler import Limits, Scheduler
from replica.simengine.publisher import EventEncoder


@dataclass
class Sent:
    """One request: what it asks, what the real model answered, and the step before which it arrives."""

    prompt: list[int]
    output: Iterator[int]
    max_tokens: int
    arrives: int = 0
    salt: str | None = None
    adapter: Adapter | None = None
    reads_cache: bool = True


def run(scheduler: Scheduler, sent: list[Sent]) -> tuple[list[list[CacheEvent]], list[Request]]:
    """Run requests to their end; the events of each step that has any, and the requests."""
    batches = []
    requests: list[Request] = []
    step = 0
    while scheduler.has_work or len(requests) < len(sent):
        for each in sent:
            if each.arrives == step:
                request = Request(
                    request_id=str(len(requests)),
                    token_ids=list(each.prompt),
                    max_tokens=each.max_tokens,
                    next_token=each.output.__next__,
                    salt=each.salt,
                    adapter=each.adapter,
                    reads_cache=each.reads_cache,
                )
                scheduler.add(request, now_s=step)
                requests.append(request)
        scheduler.complete(scheduler.schedule(), now_s=step)
        if events := scheduler.take_events():
            batches.append(events)
        step += 1
    return batches, requests


def recorded(golden: Path, name: str) -> list[bytes]:
    """The payloads of a recording, in order."""
    return [bytes.fromhex(frames[2]) for frames in json.loads((golden / "recordings" / f"{name}.json").read_text())]


def encoded(encoder: EventEncoder, batches: list[list[CacheEvent]], payloads: list[bytes]) -> list[bytes]:
    """Our batches as payloads, with the recorded times."""
    times = [msgspec.msgpack.decode(payload)[0] for payload in payloads]
    return [encoder.encode(batch, 0, time) for batch, time in zip(batches, chain(times, repeat(0.0)), strict=False)]


def line(k: int, length: int) -> list[int]:
    """The prompt number `k` of the eviction recording: a straight line through the vocabulary."""
    return [60 + (k * 977 + 31 * index) % 4000 for index in range(length)]


def evicting(k: int, length: int, max_tokens: int = 1, output: int = 0) -> Sent:
    return Sent(line(k, length), repeat(output), max_tokens)


def test_evictions_duplicates_and_preemptions_are_published_as_by_the_real_engine(golden: Path) -> None:
    """All 150 batches of an engine of 24 blocks come out byte for byte: types, hashes, tokens, order, steps."""
    payloads = recorded(golden, "eviction_int_block32")
    limits = Limits(num_blocks=24, max_num_batched_tokens=128)
    scheduler = Scheduler(limits, BlockHasher("sha256_cbor", 32))
    groups = [
        [evicting(1, 320)],
        [evicting(2, 320)],
        [evicting(3, 320)],
        [evicting(1, 320)],
        [evicting(4, 640)],
        [evicting(5, 160), evicting(5, 160)],
        *([evicting(6, 64)] for _ in range(3)),
        [evicting(7, 672)],
        [evicting(8, 672)],
        [evicting(9, 40, 100, 2062)],
        [evicting(10, 150, 300, 2449) for _ in range(4)],
        [
            evicting(20, 150, 300, 219),
            evicting(21, 150, 300, 1196),
            evicting(22, 150, 300, 2173),
            evicting(23, 150, 300, 3150),
        ],
    ]
    batches = [batch for group in groups for batch in run(scheduler, group)[0]]
    assert scheduler.counters.preemptions > 0
    ours = encoded(EventEncoder(arrays=False, whole_hashes=False), batches, payloads)
    assert len(ours) == 150
    assert ours == payloads


LORA = [Adapter("lora_a", "/adapters/a", 1), Adapter("lora_b", "/adapters/b", 2), Adapter("lora_a", "/adapters/a", 1)]


def sent_of(vector: dict[str, Any], arrives: tuple[int, ...]) -> list[Sent]:
    """The requests that the engine made of one recorded body: one a prompt and a choice."""
    body = vector["body"]
    prompts, outputs = vector["prompt_token_ids"], vector["output_token_ids"]
    prompts = prompts if isinstance(prompts[0], list) else [prompts] * body.get("n", 1)
    outputs = outputs if isinstance(outputs[0], list) else [outputs]
    reads = body.get("prompt_logprobs") is None and not (body.get("echo") and body.get("logprobs") is not None)
    return [
        Sent(prompt, iter(output), body["max_tokens"], at, body.get("cache_salt"), reads_cache=reads)
        for prompt, output, at in zip(prompts, outputs, arrives or repeat(0), strict=False)
    ]


def lora_requests(index: int) -> list[Sent]:
    """A request with an adapter, as recorded; the adapters' paths are not known."""
    salt = "tenant-A" if index == 2 else None
    return [Sent(list(range(100, 200)), repeat(0), 1, salt=salt, adapter=LORA[index])]


# Which vectors were sent, and which to put in the place of those of the same name: some texts and the chats were noted
# for sha256_cbor alone, and tokens do not depend on the hash. Then when requests overlapped: of two choices or three
# prompts of one request, the later ones arrived a step after the first where it says so.
RECORDINGS = {
    "sha256_cbor_bytes_block16": (
        "sha256_cbor",
        16,
        slice(0, 29),
        slice(0, 0),
        {"n2": ((0, 1), (0, 1)), "batch_prompts": ((0, 1, 1),) * 2},
    ),
    "sha256_int_block32": (
        "sha256",
        32,
        slice(29, 58),
        slice(80, 102),
        {"n2": ((0, 1), (0, 0)), "batch_prompts": ((0, 1, 1),) * 2},
    ),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_each_request_sent_twice_after_a_reset_publishes_what_was_recorded(golden: Path, name: str) -> None:
    """Every batch is the recorded one byte for byte; with adapters, whose paths are unknown, all but the hashes."""
    algorithm, size, chosen, instead, overlaps = RECORDINGS[name]
    payloads = recorded(golden, name)
    vectors = json.loads((golden / "vectors" / "vllm-0.32-hashes.json").read_text())["engine"]
    scheduler = Scheduler(Limits(num_blocks=512), BlockHasher(algorithm, size))
    batches: list[list[CacheEvent]] = []
    with_adapter: set[int] = set()

    def twice(first: list[Sent], second: list[Sent]) -> None:
        assert scheduler.reset_prefix_cache()
        for sent in (first, second):
            batches.extend(run(scheduler, sent)[0])

    better = {vector["name"]: vector for vector in vectors[instead]}
    for vector in (better.get(vector["name"], vector) for vector in vectors[chosen]):
        if vector["name"] == "n2":
            for index in range(3):
                twice(lora_requests(index), lora_requests(index))
                with_adapter.add(len(batches) - 1)
        if vector["status"] != 200:
            assert scheduler.reset_prefix_cache()
            continue
        first, second = overlaps.get(vector["name"], ((), ()))
        twice(sent_of(vector, first), sent_of(vector, second))

    ours = encoded(EventEncoder(arrays=False, whole_hashes="bytes" in name), batches, payloads)
    assert len(ours) == len(payloads)
    for index, (mine, theirs) in enumerate(zip(ours, payloads, strict=True)):
        if index in with_adapter:
            assert without_hashes(mine) == without_hashes(theirs), index
        else:
            assert mine == theirs, (index, msgspec.msgpack.decode(mine), msgspec.msgpack.decode(theirs))


def without_hashes(payload: bytes) -> Any:
    batch = msgspec.msgpack.decode(payload)
    for event in batch[1]:
        if "block_hashes" in event:
            event["block_hashes"] = len(event["block_hashes"])
    return batch


def test_recorded_requests_hit_as_many_tokens_as_they_did(golden: Path) -> None:
    """cached_tokens of each recorded request, sent first and sent again, equals what the engine reported."""
    vectors = json.loads((golden / "vectors" / "vllm-0.32-hashes.json").read_text())["engine"]
    answered = [vector for vector in vectors if vector["status"] == 200]
    assert len(answered) == 98
    for vector in answered:
        hasher = BlockHasher(vector["algo"], vector["block_size"], vector["pythonhashseed"])
        scheduler = Scheduler(Limits(num_blocks=512), hasher)
        for wanted in (vector["cached_first"], vector["cached_repeat"]):
            arrives = (0, 1) if vector["name"] == "n2" else ()
            _, requests = run(scheduler, sent_of(vector, arrives))
            # The engine reports the last of several prompts' and choices' hits.
            assert requests[-1].cached_tokens == wanted, vector["name"]


def test_recorded_requests_leave_the_recorded_blocks(golden: Path) -> None:
    """The blocks cached after a recorded request are those of prompt + output[:-1], with the recorded digests."""
    vectors = json.loads((golden / "vectors" / "vllm-0.32-hashes.json").read_text())["engine"]
    for vector in vectors:
        if vector["status"] != 200:
            continue
        hasher = BlockHasher(vector["algo"], vector["block_size"], vector["pythonhashseed"])
        assert hasher.root.hex() == vector["none_hash"]
        scheduler = Scheduler(Limits(num_blocks=512), hasher)
        run(scheduler, sent_of(vector, ()))
        cached = {key.hex() for key in scheduler.pool.keys if key is not None}
        assert cached == set(vector["ref_block_hashes"]), vector["name"]
