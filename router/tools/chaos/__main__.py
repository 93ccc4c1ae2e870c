"""`python -m router.tools.chaos`: rounds of faults under traffic; the last line is JSON, the exit code 0 for pass."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from router.tools.chaos.blocks import Comparison
from router.tools.chaos.faults import Striker
from router.tools.chaos.fleet import ChaosFleet
from router.tools.chaos.plan import Fault, Kind, plan
from router.tools.chaos.traffic import Traffic
from router.tools.processes import StartError
from router.tools.scratch import Scratch

SETTLE_S = 10.0
SHOWN = 20


class Chaos:
    """One run."""

    def __init__(self, fleet: ChaosFleet, client: aiohttp.ClientSession, seed: int) -> None:
        self._fleet = fleet
        self._seed = seed
        self._client = client
        self._striker = Striker(fleet, client)
        self._traffic = Traffic(fleet, client, seed)
        self._comparisons = 0
        self._blocks = 0
        self._slowest_s = 0.0
        self._problems: list[str] = []

    async def run(self, rounds: int, seconds: float) -> None:
        """Run all rounds; each takes `seconds`, its comparison included."""
        self._traffic.start()
        try:
            for number in range(rounds):
                await self._round(number, seconds)
        finally:
            await self._traffic.stop()

    def result(self) -> dict[str, Any]:
        """Return the counts."""
        tally = self._traffic.tally
        return {
            "passed": not self.problems(),
            "seed": self._seed,
            "faults": dict(sorted(self._striker.struck.items())),
            "faults_total": self._striker.struck.total(),
            "event_messages_struck": sum(mangler.struck for mangler in self._fleet.manglers.values()),
            "requests": tally.requests,
            "failures": len(tally.failures),
            "left_by_the_client": tally.left,
            "cut_by_a_kill": dict(tally.excused),
            "asked_the_other_router": tally.elsewhere,
            "slowest_answer_s": round(tally.slowest_s, 1),
            "comparisons": self._comparisons,
            "blocks_compared": self._blocks,
            "slowest_comparison_s": round(self._slowest_s, 1),
        }

    def problems(self) -> list[str]:
        """Return everything that is not as it should be, in words."""
        unexpected = [text for process in self._fleet.processes().values() for text in process.unexpected]
        return [*self._traffic.tally.failures, *self._problems, *unexpected]

    async def _round(self, number: int, seconds: float) -> None:
        began_s = time.monotonic()
        self._traffic.resume()
        faults = plan(self._seed, number, seconds - SETTLE_S / 2)
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(began_s + fault.at_s - time.monotonic())
                group.create_task(self._strike(fault))
        tail_lost = any(fault.kind is Kind.FRAMES_TAIL_DROPPED for fault in faults)
        if not tail_lost:
            self._leave_messages_alone()
        over_s = time.monotonic()
        for process in self._fleet.processes().values():
            process.look()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._traffic.pause()
        if tail_lost:  # which goes on as long as anything is announced
            self._leave_messages_alone()
            over_s = time.monotonic()
        comparison = Comparison()
        await comparison.run(self._fleet, self._client, over_s + SETTLE_S)
        self._comparisons += 1
        self._blocks += comparison.blocks
        settled_s = time.monotonic() - over_s
        self._slowest_s = max(self._slowest_s, settled_s)
        self._problems += [f"round {number}: {text}" for text in comparison.differences]
        compared = f"{comparison.blocks} blocks compared {settled_s:.1f} s after the last"
        _say(f"round {number}: {len(faults)} faults, {compared}")

    def _leave_messages_alone(self) -> None:
        for name, mangler in self._fleet.manglers.items():
            mangler.reset()
            self._fleet.frames[name].send_held()

    async def _strike(self, fault: Fault) -> None:
        _say(f"{time.strftime('%H:%M:%S')} {fault}")
        try:
            await self._striker.strike(fault)
        except StartError as error:
            self._problems.append(f"{fault}: {error}")


def _say(text: str) -> None:
    print(text, flush=True)


async def _main(args: argparse.Namespace, folder: Path) -> int:
    _say(f"seed {args.seed}: replay with --seed {args.seed} --rounds {args.rounds} --seconds {args.seconds:g}")
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    async with aiohttp.ClientSession(connector=connector) as client, ChaosFleet(folder, client, args.seed) as fleet:
        chaos = Chaos(fleet, client, args.seed)
        await chaos.run(args.rounds, args.seconds)
        problems = chaos.problems()
        result = chaos.result()
    for text in problems[:SHOWN]:
        _say(text)
    if len(problems) > SHOWN:
        _say(f"and {len(problems) - SHOWN} more")
    _say(json.dumps(result))
    return 1 if problems else 0


def main(argv: list[str] | None = None) -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(prog="make chaos", description="Faults under traffic, then block for block.")
    add = parser.add_argument
    add("--seed", type=int, help="chooses faults and traffic (default: a fresh one, which is printed)")
    add("--rounds", type=int, default=5, help="times that traffic pauses and blocks are compared (default 5)")
    add("--seconds", type=float, default=60.0, help="seconds a round, comparison included (default 60)")
    add("--logs", type=Path, help="folder for what every process writes (default: a temporary one)")
    args = parser.parse_args(argv)
    if args.seed is None:
        args.seed = secrets.randbelow(1_000_000)
    if args.rounds < 1 or args.seconds <= SETTLE_S:
        parser.error(f"at least one round, of more than {SETTLE_S:g} seconds")
    scratch = Scratch()
    folder = args.logs or scratch.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return asyncio.run(_main(args, folder))
    except StartError as error:
        _say(str(error))
        return 1
    finally:
        scratch.remove()


if __name__ == "__main__":
    sys.exit(main())
