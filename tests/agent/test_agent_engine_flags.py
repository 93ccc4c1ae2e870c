"""What is added to the command of an engine that the agent starts."""

from __future__ import annotations

import itertools
import json
import shlex

import pytest

from replica.agent.engine_flags import Sockets, additions, kind_of, ranks_of
from replica.agent.engine_options import config_words

SOCKETS = Sockets(("ipc:///k/events", "ipc:///k/replay"), ("ipc:///k/events", "ipc:///k/replay"))
EVENTS = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": SOCKETS.bound[0],
    "replay_endpoint": SOCKETS.bound[1],
}


def added(command: str) -> dict[str, object]:
    """Options that are added, and their values."""
    words = [*additions(shlex.split(command), lambda ranks: SOCKETS).words, "--"]
    found: dict[str, object] = {}
    for word, value in itertools.pairwise(words):
        if word.startswith("--") and word != "--":
            found[word] = True if value.startswith("--") else json.loads(value) if value[0] == "{" else value
    return found


VLLM = {
    "--prefix-caching-hash-algo": "sha256_cbor",
    "--enable-prompt-tokens-details": True,
    "--kv-events-config": EVENTS,
}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("vllm serve m", "vllm"),
        ("/opt/venv/bin/vllm serve m --port 8000", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("numactl -N 0 vllm serve m", "vllm"),
        ("python -m sglang.launch_server --model-path m", "sglang"),
        ("warmroute simengine --model m", "simengine"),
        ("bash -c 'vllm serve m'", None),
        ("./start.sh", None),
    ],
)
def test_an_engine_is_known_by_its_command(command: str, kind: str | None) -> None:
    """One that is not to be seen gets nothing: a script would take it for its own."""
    assert kind_of(shlex.split(command)) == kind
    if kind is None:
        assert added(command) == {}


def test_vllm_gets_all_that_it_lacks() -> None:
    """Hashes that can be computed, events with their replay, and cached tokens in answers."""
    assert added("vllm serve m") == VLLM


@pytest.mark.parametrize(
    ("own", "left_out"),
    [
        ("--prefix-caching-hash-algo sha256", ["--prefix-caching-hash-algo"]),
        ("--prefix_caching_hash_algo=xxhash", ["--prefix-caching-hash-algo"]),
        ("--enable-prompt-tokens-details", ["--enable-prompt-tokens-details"]),
        ("--no-enable-prompt-tokens-details", ["--enable-prompt-tokens-details"]),
        ("--kv-events-config '{}'", ["--kv-events-config"]),
        ("--kv-events-config.enable_kv_cache_events true", ["--kv-events-config"]),
        ("--no-enable-prefix-caching", list(VLLM)),
        ("--kv-transfer-config '{}'", []),
    ],
)
def test_what_the_operator_wrote_holds(own: str, left_out: list[str]) -> None:
    """In every spelling of vLLM's; without a prefix cache there is nothing to tell."""
    assert added(f"vllm serve m {own}") == {name: value for name, value in VLLM.items() if name not in left_out}


def test_what_its_file_of_options_sets_holds_too() -> None:
    """`--config`: a word on the command line would take its place."""
    text = "model: m\n# kv-events-config: no\nprefix-caching-hash-algo: sha256\nkv_events_config:\n  publisher: zmq\n"
    words = ["vllm", "serve", *config_words(text)]
    assert added(shlex.join(words)) == {"--enable-prompt-tokens-details": True}
    assert ranks_of(["vllm", "serve", *config_words("data-parallel-size : 4 \n")]) == 4


def test_sglang_gets_its_own() -> None:
    """Its load is in metrics that are off by default, and so are cached tokens."""
    assert added("python -m sglang.launch_server --model-path m") == {
        "--enable-metrics": True,
        "--enable-cache-report": True,
        "--kv-events-config": EVENTS,
    }


def test_the_simulated_engine_gets_its_hash_algorithm() -> None:
    """It publishes by itself."""
    assert added("warmroute simengine --model m") == {"--hash-algo": "sha256_cbor"}
    assert added("warmroute simengine --hash-algo sha256") == {}


@pytest.mark.parametrize(
    ("own", "ranks"),
    [("", 1), ("--data-parallel-size 8", 8), ("-dp 2", 2), ("-dp=2", 2), ("--data_parallel_size=4", 4), ("-dp x", 1)],
)
def test_sockets_are_asked_for_as_many_ranks_as_there_are(own: str, ranks: int) -> None:
    """vLLM's rank r is on port + r."""
    asked: list[int] = []

    def sockets(count: int) -> Sockets:
        asked.append(count)
        return SOCKETS

    additions(shlex.split(f"vllm serve m {own}"), sockets)
    assert asked == [ranks]
