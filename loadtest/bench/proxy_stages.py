"""A router that tells how its time was spent: `python -m loadtest.bench.proxy_stages FILE router --config ...`.

The methods where a stage begins are wrapped; each stage's time is its own, without that of stages begun within it.
Written to FILE as JSON at the end, and on SIGUSR1 counting begins anew (so that a warm-up does not count).
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STAGES = {
    "client: heads, bodies": ("client_connection:ClientConnection.data_received",),
    "prompt: read, tokenise, or known": ("prompts:Prompts.begin",),
    "placement: match, score, pick, reserve, release": (
        "router.placement:Placer.place",
        "router.placement:Placer.first_token",
        "router.placement:Placer.finish",
    ),
    "engine: request out, answer's framing in": (
        "engine_connection:EngineConnection.send",
        "engine_connection:EngineConnection.data_received",
    ),
    "client: answer out": (
        "http1_exchange:Http1Exchange.start",
        "http1_exchange:Http1Exchange.write",
        "http1_exchange:Http1Exchange.end",
    ),
    "account: metrics, decision, access line": (
        "router.telemetry.recorder:Recorder.accepted",
        "router.telemetry.recorder:Recorder.prompt_read",
        "router.telemetry.recorder:Recorder.placed",
        "router.telemetry.recorder:Recorder.finished",
    ),
}


class Clock:
    """Whose time it is: the thread's own CPU time, since others may have the core in between."""

    def __init__(self) -> None:
        self.spent_s = dict.fromkeys(STAGES, 0.0)
        self._running: list[str] = []
        self._since_s = 0.0
        self.cpu_begun_s = time.process_time()

    def reset(self, *_: object) -> None:
        """Count from now on."""
        self.spent_s = dict.fromkeys(STAGES, 0.0)
        self.cpu_begun_s = time.process_time()

    def timed(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with its time counted for a stage."""
        running, now = self._running, time.thread_time

        @functools.wraps(call)
        def wrapped(*args: Any, **named: Any) -> Any:
            at_s = now()
            if running:
                self.spent_s[running[-1]] += at_s - self._since_s
            running.append(stage)
            self._since_s = at_s
            try:
                return call(*args, **named)
            finally:
                at_s = now()
                self.spent_s[stage] += at_s - self._since_s
                running.pop()
                self._since_s = at_s

        return wrapped

    def write(self, file: Path) -> None:
        """Write what was counted, and all CPU time of the process."""
        file.write_text(json.dumps({"stages_s": self.spent_s, "cpu_s": time.process_time() - self.cpu_begun_s}))


def main() -> int:
    """Wrap the stages, then be the command."""
    file = Path(sys.argv.pop(1))
    clock = Clock()
    for stage, places in STAGES.items():
        for place in places:
            module, _, path = place.partition(":")
            owner, _, name = path.partition(".")
            where = module if module.startswith("router.") else f"router.proxy.{module}"
            cls = getattr(importlib.import_module(where), owner)
            setattr(cls, name, clock.timed(stage, getattr(cls, name)))
    signal.signal(signal.SIGUSR1, clock.reset)
    signal.signal(signal.SIGUSR2, lambda *_: clock.write(file))
    atexit.register(clock.write, file)
    from router.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
