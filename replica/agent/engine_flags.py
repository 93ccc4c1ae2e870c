"""What an engine that the agent starts needs on its command line, where the operator did not say it. Pure.

Block hashes that can be computed, events, their replay, and cached tokens in answers. What stands in the command holds,
in every spelling; an engine that is not known by its command is started as it is.

vLLM puts data-parallel rank r on port + r for both sockets, so the two are as far apart as there are ranks. One rank
alone has sockets in a folder of the agent's own: events carry token ids, and a port would be open to others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from replica.agent.engine_options import has_option, int_option

EVENTS = "--kv-events-config"


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where the first rank publishes and replays, as the engine is told, and as the agent reaches it."""

    bound: tuple[str, str]
    reached: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Addition:
    """What is added to a command.

    Attributes:
        words: To be put at its end.
        sockets: Where its events are; None where the command says that itself, or there are none.
    """

    words: tuple[str, ...] = ()
    sockets: Sockets | None = None


def kind_of(command: Sequence[str]) -> str | None:
    """Return which engine a command starts: `vllm`, `sglang` or `simengine`; None where that is not to be seen."""
    for place, word in enumerate(command):
        following = command[place + 1] if place + 1 < len(command) else ""
        name = PurePath(word).name
        if word == "-m" and following.startswith("vllm.entrypoints."):
            return "vllm"
        if word == "-m" and following == "sglang.launch_server":
            return "sglang"
        if name in ("vllm", "sglang") and following == "serve":
            return name
        if word == "simengine":
            return "simengine"
        if name in ("bash", "sh", "dash") and following.startswith("-"):
            return None  # what it runs is text, which is not ours to write on
    return None


def ranks_of(command: Sequence[str]) -> int:
    """Return how many data-parallel ranks a command asks for, at least 1."""
    return max(1, int_option(command, "--data-parallel-size", "-dp", "--dp-size", "--dp") or 1)


def additions(command: Sequence[str], sockets: Callable[[int], Sockets]) -> Addition:
    """Return what to add to an engine's command.

    Args:
        command: As the operator wrote it.
        sockets: Gives a number of ranks their sockets; asked where the command says nothing of events.
    """
    kind = kind_of(command)
    if kind is None:
        return Addition()
    words: list[str] = []
    if kind == "simengine":
        return Addition(tuple(_unless(command, "--hash-algo", "sha256_cbor")))
    if kind == "vllm":
        if has_option(command, "--no-enable-prefix-caching"):
            return Addition()  # there is nothing to name and nothing to tell
        words += _unless(command, "--prefix-caching-hash-algo", "sha256_cbor")
        words += _unless(command, "--enable-prompt-tokens-details")
    else:
        words += _unless(command, "--enable-metrics")
        words += _unless(command, "--enable-cache-report")
    if has_option(command, EVENTS):
        return Addition(tuple(words))
    found = sockets(ranks_of(command))
    events, replay = found.bound
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events, "replay_endpoint": replay}
    return Addition((*words, EVENTS, json.dumps(told)), found)


def _unless(command: Sequence[str], option: str, *value: str) -> list[str]:
    stem = option.removeprefix("--")
    return [] if has_option(command, option, f"--no-{stem}") else [option, *value]
