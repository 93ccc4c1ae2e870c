"""SGLang: its events, its pages in groups, its metrics and what it tells of itself.

Its hashes are computed here by the published rule (sha256 of the parent's digest and 4 little-endian bytes a token, the
first 8 bytes as a signed integer), so nothing of ours is in what is expected.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import msgspec
import pytest

from replica.agent.adapters.sglang import SglangAdapter
from replica.agent.mapping import own_scheme
from replica.agent.proof import SchemeProof
from replica.agent.sglang_facts import cache_config, event_sources
from replica.agent.unit import UnitState
from router.kv.engine_metrics import SGLANG_ALGORITHM, CacheConfig, Load, cache_configs, loads, started_s, totals
from router.kv.events import HASH_MASK, AllBlocksCleared, BlockRemoved, BlockStored, Tier
from router.kv.hashes import chain


def pages(tokens: list[int], size: int) -> list[int]:
    """Return SGLang's hashes of a prompt's whole pages."""
    digest, found = b"", []
    for start in range(0, len(tokens) - size + 1, size):
        digest = hashlib.sha256(
            digest + b"".join(t.to_bytes(4, "little") for t in tokens[start : start + size])
        ).digest()
        found.append(int.from_bytes(digest[:8], "big", signed=True))
    return found


def unit(num_blocks: int | None = None) -> UnitState:
    return UnitState("s0/0", SglangAdapter(), SchemeProof(SGLANG_ALGORITHM, None, None), num_blocks, maps=True)


class Tree:
    """A radix cache that announces as SGLang does: one event a page, or runs joined; leaves are evicted whole."""

    def __init__(self, size: int, joined: bool, state: UnitState) -> None:
        self.size, self.joined, self.state = size, joined, state
        self.held: dict[int, tuple[int, ...]] = {}
        self.sequence = 0

    def publish(self, *events: list[Any]) -> None:
        self.state.accept(self.sequence, msgspec.msgpack.encode([1.0, list(events), 0]))
        self.sequence += 1

    def insert(self, tokens: list[int]) -> None:
        hashes = pages(tokens, self.size)
        first = next((i for i, h in enumerate(hashes) if h not in self.held), len(hashes))
        events = []
        for index in range(first, len(hashes)):
            parent = hashes[index - 1] if index else None
            run = tokens[index * self.size : (index + 1) * self.size]
            events.append(["BlockStored", [hashes[index]], parent, run, self.size, None, "GPU"])
            self.held[hashes[index]] = tuple(tokens[: (index + 1) * self.size])
        if self.joined and events:
            whole = events[0]
            for event in events[1:]:
                whole[1] = whole[1] + event[1]
                whole[3] = whole[3] + event[3]
            events = [whole]
        if events:
            self.publish(*events)

    def evict(self, keep: list[int]) -> None:
        """Remove all pages that are no beginning of `keep`'s."""
        wanted = set(pages(keep, self.size))
        gone = [h for h in self.held if h not in wanted]
        for h in gone:
            del self.held[h]
        if gone:
            self.publish(["BlockRemoved", gone, "GPU"])

    def expected(self) -> set[int]:
        """Names of all whole groups of ours that are held."""
        scheme = own_scheme(self.size)
        return {chain(list(t), scheme)[-1] for t in self.held.values() if len(t) % scheme.block_size == 0}


def live(state: UnitState) -> set[int]:
    return {block for _, _, _, hashes in state.layers() for block in hashes}


@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 64])
@pytest.mark.parametrize("joined", [False, True])
def test_what_routers_are_told_is_what_the_tree_holds(size: int, joined: bool) -> None:
    """Prompts that share beginnings come and go; pages of few tokens are told as blocks of at least 16."""
    rng = random.Random(size)
    state = unit()
    tree = Tree(size, joined, state)
    prompts = [[rng.randrange(50_000) for _ in range(200)] for _ in range(3)]
    prompts += [[*prompts[0][: 16 * k + 5], *(rng.randrange(50_000) for _ in range(90))] for k in range(1, 6)]
    for _ in range(40):
        if rng.random() < 0.7:
            tree.insert(rng.choice(prompts)[: rng.randrange(1, 200)])
        else:
            tree.evict(rng.choice(prompts))
        assert live(state) == tree.expected()
    assert own_scheme(size).block_size >= 16
    assert state.mapped is not None
    assert state.mapped.unnamed == 0


def test_pages_whose_beginning_was_missed_are_not_told() -> None:
    """An agent that comes late knows nothing of a chain until it is stored from its root again."""
    tokens = list(range(64))
    hashes = pages(tokens, 1)
    state = unit()
    late = ["BlockStored", hashes[20:], hashes[19], tokens[20:], 1, None, "GPU"]
    state.accept(0, msgspec.msgpack.encode([1.0, [late], 0]))
    assert live(state) == set()
    head = ["BlockStored", hashes[:20], None, tokens[:20], 1, None, "GPU"]
    state.accept(1, msgspec.msgpack.encode([1.0, [head, late], 0]))
    assert live(state) == set(chain(tokens, own_scheme(1)))


def test_salted_blocks_and_bigrams_are_not_named() -> None:
    """A salt is not in the tokens, and pairs of tokens are not those of a prompt: nothing false is told."""
    tokens = list(range(16))
    hashes = pages(tokens, 16)
    state = unit()
    for sequence, more in enumerate(([{"cache_salt": "s"}], ["s", None, None])):
        salted = ["BlockStored", [hashes[0] + sequence], None, tokens, 16, None, "GPU", *more]
        state.accept(sequence, msgspec.msgpack.encode([1.0, [salted], 0]))
    pairs = [[t, t + 1] for t in tokens]
    state.accept(2, msgspec.msgpack.encode([1.0, [["BlockStored", [5], None, pairs, 16, None, "GPU"]], 0]))
    assert live(state) == set()
    assert state.mapped is not None
    assert state.mapped.unnamed == 3


def test_events_of_every_release_are_read() -> None:
    """With and without medium and metadata; CPU_PINNED is the CPU, and a shared pool is nobody's."""
    read = SglangAdapter().read
    stored = ["BlockStored", [-5], None, [1], 1, None]
    events = [stored, [*stored, "CPU_PINNED"], [*stored, "DISK", {"cache_salt": "x"}], [*stored, "EXTERNAL"]]
    events += [["BlockRemoved", [-5]], ["BlockRemoved", [-5], "CPU_PINNED"], ["AllBlocksCleared"]]
    batch = read(msgspec.msgpack.encode([1.5, events, 3]))
    number = -5 & HASH_MASK
    assert batch.events == [
        BlockStored((number,), None, [1], 1),
        BlockStored((number,), None, [1], 1, Tier.CPU),
        BlockStored((number,), None, [1], 1, Tier.DISK, extra_keys=(("cache_salt",),)),
        BlockRemoved((number,)),
        BlockRemoved((number,), Tier.CPU),
        AllBlocksCleared(),
    ]
    assert (batch.rank, batch.at_s, batch.skipped) == (3, 1.5, {"remote_block": 1})


# Lines as SGLang writes them: two workers of rank 0 say the same, and the sum stands beside its priorities.
METRICS = """\
process_start_time_seconds 1.7645e+09
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 4.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",priority=""} 3.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",priority="1"} 3.0
sglang:num_queue_reqs{dp_rank="1",model_name="m",priority=""} 0.0
sglang:token_usage{dp_rank="0",model_name="m"} 0.25
sglang:token_usage{dp_rank="1",model_name="m"} 0.0
"""


def test_its_load_is_told_by_rank() -> None:
    """Workers and priorities are not added up."""
    assert loads(METRICS) == {"0": Load(4, 3, 0.25), "1": Load(0, 0, 0.0)}
    assert (totals(METRICS).running, totals(METRICS).waiting) == (4, 3)
    assert started_s(METRICS) == 1.7645e9


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('sglang:cache_config_info{dp_rank="0",num_pages="100",page_size="16"} 1.0\n', {"0": (16, 100)}),
        ('sglang:page_size{dp_rank="0"} 16\nsglang:num_pages{dp_rank="0"} 100\n', {"0": (16, 100)}),
        ('sglang:page_size{tp_rank="0"} 16\nsglang:max_total_num_tokens{tp_rank="0"} 1600\n', {"": (16, 100)}),
        ('sglang:max_total_num_tokens{dp_rank="1"} 1600\n', {"1": (None, None)}),
    ],
)
def test_its_cache_is_read_in_every_form(lines: str, expected: dict[str, Any]) -> None:
    """Labels until 0.5.11, gauges since; what is not told is unknown."""
    assert cache_configs(lines) == {rank: CacheConfig(*sizes, SGLANG_ALGORITHM) for rank, sizes in expected.items()}


def test_its_sockets_are_found_by_rank() -> None:
    """The arguments as JSON text or read already; rank r is at port + r; off is off."""
    config = {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}
    for given in (config, json.dumps(config)):
        assert event_sources({"kv_events_config": given, "dp_size": 2}) == {
            "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"},
            "1": {"endpoint": "tcp://*:5558", "replay_endpoint": "tcp://*:5658"},
        }
    for off in (None, "{", "[]", {"publisher": "null"}, {}, {"endpoint": "tcp://*:5557"}):
        assert event_sources({"kv_events_config": off}) == {}
    odd = event_sources({"kv_events_config": {"publisher": "zmq", "endpoint": "ipc:///x"}, "dp_size": "2"})
    assert odd == {"0": {"endpoint": "ipc:///x", "replay_endpoint": None}}


def test_its_arguments_stand_for_metrics_that_are_off() -> None:
    """Pages from tokens; a prefix cache that is off."""
    info = {"page_size": 16, "max_total_num_tokens": 1600, "disable_radix_cache": True}
    assert cache_config(info) == CacheConfig(16, 100, SGLANG_ALGORITHM, False)
    assert cache_config({"page_size": "x"}) == CacheConfig(None, None, SGLANG_ALGORITHM, None)
