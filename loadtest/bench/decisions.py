"""`make bench-decisions`: what keeping decisions, ledger and metrics takes of memory: 100,000 decisions in ten minutes.

Virtual time, the real placer and recorder, 100 replicas, 20 models' names, 50 tenants, conversations that grow: each
request is placed, answered and recorded as the data plane does it. What is measured is this process's memory before the
first and after the last, when prompts and placements are gone. The limit is 60 MB.
"""

from __future__ import annotations

import argparse
import gc
import io
import random
import sys
import time
from pathlib import Path

from router.config_placement import PlacementConfig
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.fleet.fleet import Fleet
from router.index.approximate import ApproximateMemory
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.schemes import HashAlgorithm, Scheme
from router.placement import Placer
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome
from router.telemetry.access_log import AccessLog, RequestFacts
from router.telemetry.decisions import DecisionLog
from router.telemetry.ledger_series import register_series
from router.telemetry.metrics import Metrics
from router.telemetry.recorder import Recorder

LIMIT_MB = 60.0
SECONDS = 600.0
REPLICAS, MODELS, TENANTS = 100, 20, 50
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


def rss_mb() -> float:
    """Return this process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def fleet_of(names: list[str]) -> Fleet:
    """Return replicas that all serve these models."""
    fleet = Fleet()
    models = tuple(ServedModel(name, f"/models/{name}") for name in names)
    for number in range(REPLICAS):
        unit = UnitFacts(f"r{number}/0", 0, SCHEME, Trust.EXACT, 50_000)
        fleet.announce(ReplicaFacts(f"r{number}", f"http://10.0.0.1:{number + 1}", "redis", models, (unit,)), 0.0)
    return fleet


class Load:
    """Requests of conversations that grow."""

    def __init__(self, names: list[str]) -> None:
        self._rng = random.Random(7)
        self._names = names
        self._turns: dict[int, list[int]] = {}

    def next(self) -> tuple[Prompt, str]:
        """Return a prompt, and whose it is."""
        rng = self._rng
        talk = rng.randrange(200)
        ids = self._turns.setdefault(talk, [talk] * 400)
        ids.extend(rng.randrange(50_000) for _ in range(60))
        if len(ids) > 2_000:
            del self._turns[talk]
        model, tenant = self._names[talk % MODELS], f"tenant-{talk % TENANTS}"
        return Prompt(Kind.CHAT, model, True, list(ids), len(ids)), tenant


def run(decisions: int) -> tuple[float, float]:
    """Return how many MB were taken, and microseconds of recording a request."""
    names = [f"model-{number}" for number in range(MODELS)]
    fleet, index = fleet_of(names), PrefixIndex()
    config, memory = PlacementConfig.model_validate({}), ApproximateMemory(index)
    placer = Placer(fleet, index, ExpectedBlocks(), memory, config, random.Random(1), time.time)
    metrics = Metrics("bench", ["/v1/chat/completions"], lambda name: name in names)
    recorder = Recorder(metrics, DecisionLog(1_000), AccessLog(io.StringIO(), enabled=False))
    register_series(metrics, recorder, fleet)
    load = Load(names)
    for number in range(200):  # what is made once: views, rings, code
        _serve(placer, recorder, load, number, 0.0)
    gc.collect()
    before_mb, recording_s = rss_mb(), 0.0
    for number in range(decisions):
        recording_s += _serve(placer, recorder, load, number, 1 + SECONDS * number / decisions)
    metrics.render()
    gc.collect()
    return rss_mb() - before_mb, recording_s * 1e6 / decisions


def _serve(placer: Placer, recorder: Recorder, load: Load, number: int, now_s: float) -> float:
    prompt, tenant = load.next()
    facts = RequestFacts(f"request-{number}", "POST", "/v1/chat/completions", prompt.model, True, tenant)
    placement = placer.place(prompt, facts.request_id, now_s)
    cached = placement.decision.matched_tokens
    outcome = Outcome(200, None, prompt.tokens, cached, 100, 0.1, 1.0)
    placer.first_token(placement, now_s)
    placer.finish(placement, now_s, outcome)
    begun_s = time.perf_counter()
    recorder.accepted()
    recorder.prompt_read(0.001, None)
    recorder.placed(placement.decision, 0.0001)
    recorder.finished(placement, outcome, facts)
    return time.perf_counter() - begun_s


def main() -> int:
    """Print the figures; 1 where the limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=100_000, help="placed and recorded (default: %(default)s)")
    args = parser.parse_args()
    taken_mb, recording_us = run(args.decisions)
    print(
        f"{args.decisions:,} decisions over {REPLICAS} replicas: {taken_mb:.1f} MB for decisions, ledger and metrics "
        f"(limit {LIMIT_MB:.0f}); {recording_us:.1f} us to record one"
    )
    return 0 if taken_mb < LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
