"""Runs of `warmroute simulate`: given by its options, kept by them."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import router
from router.tools import simulate
from router.tools.simulation.plan import check
from router.tools.simulation.policies import simulate as simulate_policy
from router.tools.simulation.requests import Session
from router.tools.simulation.workloads import SCENARIOS

SESSIONS_KEPT = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to.

    Attributes:
        figures: Its row, as `--json` has it.
        cpu_s: What it took, without reading the trace.
    """

    figures: dict[str, Any]
    cpu_s: float

    @property
    def p90_s(self) -> float:
        """The p90 of the time to the first token."""
        return float(self.figures["ttft_p90_s"])

    @property
    def hit_rate(self) -> float:
        """Blocks hit over blocks asked."""
        return float(self.figures["hit_rate"])

    @property
    def goodput(self) -> float:
        """Share of requests that met the objective."""
        return float(self.figures["goodput_share"])


class Bench:
    """Carries out runs.

    Args:
        cache: File that results are kept in; None keeps none.
    """

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._known: dict[str, Result] = {}
        self._sessions: dict[tuple[object, ...], list[Session]] = {}
        # Results of other code, or of other defaults, are none.
        self._code = _digest()
        if cache is not None and cache.exists():
            for line in cache.read_text().splitlines():
                kept = json.loads(line)
                if kept["code"] == self._code:
                    self._known[kept["run"]] = Result(kept["figures"], kept["cpu_s"])

    def run(self, *options: str | float) -> Result:
        """Return what `warmroute simulate` with these options gives; they name one policy."""
        words = [str(option) for option in options]
        key = " ".join(words)
        if key not in self._known:
            self._known[key] = result = self._simulate(words)
            if self._cache is not None:
                kept = {"code": self._code, "run": key, "figures": result.figures, "cpu_s": result.cpu_s}
                with self._cache.open("a") as file:
                    file.write(json.dumps(kept) + "\n")
        return self._known[key]

    def _simulate(self, words: Sequence[str]) -> Result:
        parser = argparse.ArgumentParser()
        simulate.configure(parser)
        args = parser.parse_args(words)
        scenario = SCENARIOS[args.workload] if args.workload else None
        plan = check(args, scenario)
        which = (args.workload, args.trace, plan.shapes[0].block_tokens, args.speed, args.seed)
        if which not in self._sessions:
            while len(self._sessions) >= SESSIONS_KEPT:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[which] = simulate.sessions_for(args, scenario, plan, args.seed)
        begin_s = time.process_time()
        row = simulate_policy(plan, plan.policies[0], self._sessions[which])
        return Result(row.to_dict(), round(time.process_time() - begin_s, 2))


def _digest() -> str:
    """Name the code that results come from."""
    root = Path(router.__file__).parent.parent
    sources = sorted(
        [*root.glob("router/**/*.py"), *root.glob("replica/simengine/core/*.py"), *root.glob("loadtest/workloads/*.py")]
    )
    told = hashlib.sha256()
    for source in sources:
        if "bench_placement" not in source.parts:
            told.update(source.read_bytes())
    return told.hexdigest()[:16]
