"""Our options on locust's command line, and what they mean."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from loadtest.driver.holding import Sending
from loadtest.swarm.part import with_salt
from loadtest.workloads.callers import Callers, read_keys
from loadtest.workloads.presets import PRESETS
from loadtest.workloads.schedule import Stage, read_stages
from loadtest.workloads.text import tokenizer_folder
from loadtest.workloads.traffic import TRACE, Traffic


class Parser(Protocol):
    """What of locust's parser is used here."""

    def add_argument_group(self, title: str) -> Any:
        """Begin a group of options."""


def add_options(parser: Parser) -> None:
    """Declare them; each can also be set by the environment, as LOCUST_MODEL."""
    group = parser.add_argument_group("Prefix reuse")

    def add(name: str, default: Any, what: str, **more: Any) -> None:
        variable = "LOCUST_" + name.strip("-").replace("-", "_").upper()
        group.add_argument(name, default=default, env_var=variable, help=what, **more)

    add("--model", "tiny", "model to ask for (default: tiny)")
    add("--adapters", "", "LoRA adapters to ask for beside it, by commas (default: none)")
    add("--api-keys", "", "file with API keys, one a line, that share the traffic (default: OPENAI_API_KEY)")
    add("--tokenizer", str(tokenizer_folder()), "folder with the model's tokenizer.json (default: a small one)")
    add("--workload", "mixed", "what users say (default: mixed)", choices=sorted(PRESETS))
    add("--workload-seed", 1, "seed of all texts and times (default: 1)", type=int)
    add("--open", False, "sessions arrive as the workload has it, however busy the system is", action="store_true")
    add("--stages", "", "let them arrive so instead: 2x30,2-8x60 is 2 a second for 30 s, then a ramp", type=_stages)
    add("--rate-scale", 1.0, "times the arrivals, or the trace's speed (default: 1)", type=float)
    add("--trace", "", "replay a trace in Mooncake's format at its own times")
    add("--trace-seconds", 600.0, "of the trace (default: 600)", type=float)
    add("--shrink", 1, "make its prompts and answers so many times shorter (default: 1)", type=int)
    add("--user-stages", "", "users over time: 10x60,10-50x120 (default: -u and -r)", type=_stages)
    add("--sessions", 0, "end after so many (default: no end)", type=int)
    add("--no-stream", False, "ask for whole answers; TTFT is then not measured", action="store_true")
    add("--cache-salt", "", "sent with each request, so that caches of earlier runs do not count (default: none)")
    add("--warm-up", 0.0, "seconds from the start that are not counted (default: 0)", type=float)
    add("--report", "", "folder to write report.html and report.json to, as `make loadtest` does (default: none)")
    add("--metrics", "", "URLs of engines and routers whose metrics the report shows, by commas (default: the host's)")
    add("--baseline", "", "stored report to compare with; exit code 1 if anything is worse (default: none)")
    add("--write-baseline", "", "store this report as a baseline (default: no)")


def _stages(text: str) -> str:
    # Kept as text: options go from the master to its workers as plain values.
    try:
        stages_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def stages_of(text: str) -> tuple[Stage, ...]:
    """Return the stages of an option that was checked."""
    return read_stages(text) if text else ()


def is_open(options: argparse.Namespace) -> bool:
    """Tell whether sessions arrive by themselves."""
    return bool(options.open or options.stages or options.trace)


def traffic_of(options: argparse.Namespace) -> Traffic:
    """Return what is sent."""
    return Traffic(
        TRACE if options.trace else options.workload,
        options.workload_seed,
        options.rate_scale,
        users=0 if is_open(options) else 1,
        trace=Path(options.trace) if options.trace else None,
        trace_s=options.trace_seconds,
        shrink=options.shrink,
        own_stages=stages_of(options.stages),
    )


def sending_of(options: argparse.Namespace, environ: Callable[[str], str | None] = os.environ.get) -> Sending:
    """Return how it is sent.

    Raises:
        ConfigurationError: The file with keys can't be used.
    """
    own = environ("OPENAI_API_KEY")
    keys = read_keys(Path(options.api_keys)) if options.api_keys else (own,) if own else ()
    models = (options.model, *names(options.adapters))
    sending = Sending(Callers(models, keys), not options.no_stream, warm_up_s=options.warm_up)
    return with_salt(sending, options.cache_salt)


def names(text: str) -> tuple[str, ...]:
    """Return what stands between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
