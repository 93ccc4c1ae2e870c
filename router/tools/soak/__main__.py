"""`python -m router.tools.soak`: churn under traffic; the last line says whether it passed, the one before is JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from pathlib import Path

import aiohttp

from router.tools.chaos.fleet import ChaosFleet
from router.tools.processes import StartError
from router.tools.scratch import Scratch
from router.tools.soak.plan import REPLICAS, ROUTERS
from router.tools.soak.run import SLOT_S, Soak

SHOWN = 20
LEAST_MINUTES = 1.0
SMALL_MEMORIES = {
    # What is bounded by configuration is full within minutes, so that what grows then is a leak.
    "admin": {"decisions": 500},
    "limits": {"token_cache_bytes": 8 * 2**20},
}


async def _main(args: argparse.Namespace, folder: Path) -> int:
    _say(f"seed {args.seed}: replay with --seed {args.seed} --minutes {args.minutes:g} --slot-s {args.slot_s:g}")
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        ChaosFleet(folder, client, args.seed, REPLICAS, ROUTERS, SMALL_MEMORIES) as fleet,
    ):
        soak = Soak(fleet, client, args.seed, _say, args.slot_s)
        await soak.run(args.minutes)
        problems, result = soak.problems(), soak.result()
    for text in problems[:SHOWN]:
        _say(text)
    if len(problems) > SHOWN:
        _say(f"and {len(problems) - SHOWN} more")
    text = json.dumps(result)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    _say(text)
    events = sum(row["times"] for row in result["events"].values())
    verdict = f"FAILED: {len(problems)} problems" if problems else "passed"
    _say(f"soak {verdict}; {events} events, {result['requests']:,} requests, seed {args.seed}")
    return 1 if problems else 0


def main(argv: list[str] | None = None) -> int:
    """Return 0 for pass, 1 for a problem or a fleet that does not start, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="make soak", description="Churn under traffic, and what is left of it.")
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="how long (default 60; from 10 on every kind of event comes)")
    add("--slot-s", type=float, default=SLOT_S, help=f"seconds from one event to the next (default {SLOT_S:g})")
    add("--seed", type=int, help="chooses events and traffic (default: a fresh one, which is printed)")
    add("--logs", type=Path, help="folder for what every process writes (default: a temporary one)")
    add("--out", type=Path, metavar="FILE", help="write the result's JSON here too")
    args = parser.parse_args(argv)
    if args.seed is None:
        args.seed = secrets.randbelow(1_000_000)
    if not args.minutes >= LEAST_MINUTES:
        parser.error(f"--minutes: at least {LEAST_MINUTES:g}")
    scratch = Scratch()
    folder = args.logs or scratch.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return asyncio.run(_main(args, folder))
    except StartError as error:
        _say(f"soak FAILED: {error}")
        return 1
    finally:
        scratch.remove()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
