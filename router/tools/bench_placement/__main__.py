"""Prints the tables of docs/benchmarks.md: `make bench-placement ARGS="--trace FILE"`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from router.tools.bench_placement.cells import Bench
from router.tools.bench_placement.measures import MEASURES, NEED_TRACE, Setting


def main() -> int:
    """Carry out the measures that are asked for; 0."""
    parser = argparse.ArgumentParser(prog="make bench-placement", description=__doc__)
    add = parser.add_argument
    add("--trace", type=Path, metavar="FILE", help="Mooncake's conversation trace; some measures need it")
    add("--only", default=",".join(MEASURES), metavar="NAME[,NAME...]", help=f"of: {', '.join(MEASURES)}")
    add("--seeds", default="11,12,13", metavar="N[,N...]", help="of generated workloads (default: 11,12,13)")
    add("--all", action="store_true", help="run every rule on every seed, also those far behind on the first")
    add("--cache", type=Path, metavar="FILE", help="keep results there, and go on where they end")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name]
    if unknown := [name for name in names if name not in MEASURES]:
        parser.error(f"--only: there is no measure {unknown[0]!r}, only {', '.join(MEASURES)}")
    if args.trace is not None and not args.trace.is_file():
        parser.error(f"--trace: {args.trace} is no file")
    try:
        seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds: {args.seeds!r} are no whole numbers")
    setting = Setting(args.trace, seeds, args.all)
    bench = Bench(args.cache)
    for name in names:
        measure = MEASURES[name]
        print(f"\n**{name}**: {measure.__doc__}\n")
        if name in NEED_TRACE and args.trace is None:
            print("left out: it needs --trace (mooncake_conversation.jsonl of the Mooncake project)")
            continue
        for number, row in enumerate(measure(bench, setting)):
            print("| " + " | ".join(row) + " |", flush=True)
            if number == 0:
                print("|" + "---|" * len(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
