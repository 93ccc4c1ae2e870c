"""`make bench-index`: what the index costs, native and in pure Python, beside Dynamo's RadixTree.

Each is filled with the same chains of 512 blocks, every block held by one replica, announced 16 blocks at a time, in a
process of its own:

- look-up: how far each replica holds a prompt of 512 blocks; median by the clock.
- decision: match, filters, score, pick and reserve for such a prompt, with 4 requests in flight at each replica; median
  CPU time. `4 blocks` is a decision for a short prompt among 4 replicas, `to its end` with first token and release.
- bytes a block: resident memory that the blocks added.
- events/s: block events applied a CPU second, from the bytes that the router (or Dynamo's binding) is given.

`ARGS="--dynamo PYTHON"` names an interpreter that has `ai-dynamo-runtime` installed; without it that row is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COLUMNS = (
    ("look-up us", "lookup_us", 1.0),
    ("decision us", "decision_us", 1.0),
    ("4 blocks us", "short_us", 1.0),
    ("to its end us", "short_whole_us", 1.0),
    ("bytes a block", "bytes_per_block", 1.0),
    ("M events/s", "events_per_s", 1e-6),
)


def measure(module: str, blocks: int, units: int, python: str = sys.executable, native: str = "auto") -> dict[str, Any]:
    """Run one process and return its figures.

    Raises:
        SystemExit: It failed; its words are in it.
    """
    command = [python, "-m", f"loadtest.bench.{module}", "--blocks", str(blocks), "--units", str(units)]
    environment = {**os.environ, "WARMROUTE_NATIVE": native, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def line(figures: dict[str, Any]) -> str:
    """Return a row of the table; what was not measured is a dash."""
    cells = (f"{figures[key] * scale:>15.1f}" if key in figures else f"{'-':>15}" for _, key, scale in COLUMNS)
    return f"{figures['name']:<26}{''.join(cells)}"


def main() -> None:
    """Print a table for each size of the fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=5_000_000, help="blocks in the index (default: 5,000,000)")
    parser.add_argument("--replicas", type=int, nargs="+", default=[16, 256], help="fleets' sizes (default: 16 256)")
    parser.add_argument("--dynamo", metavar="PYTHON", help="interpreter that has ai-dynamo-runtime installed")
    parser.add_argument("--json", action="store_true", help="end with all figures as one line of JSON")
    given = parser.parse_args()
    rows = []
    for units in given.replicas:
        print(f"\n{given.blocks:,} blocks, {units} replicas")
        print(" " * 26 + "".join(f"{name:>15}" for name, _, _ in COLUMNS), flush=True)
        runs = [("index_own", sys.executable, "auto"), ("index_own", sys.executable, "no")]
        if given.dynamo:
            runs.append(("index_dynamo", given.dynamo, "auto"))
        for module, python, native in runs:
            figures = measure(module, given.blocks, units, python, native)
            print(line(figures), flush=True)
            rows.append({"replicas": units, "blocks": given.blocks, **figures})
    if given.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
