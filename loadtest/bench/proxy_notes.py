"""What taking note costs: a router with decisions, ledger, metrics and access log beside one that takes no note.

Both run at once on the first core, and are measured in turn, so that what else the machine does falls on both alike.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

LIMIT_SHARE = 0.08


def compare(
    cases: Sequence[Any],
    rounds: int,
    start: Callable[[ExitStack, str, list[str]], tuple[int, int]],
    measure: Callable[[int, int, Any], Any],
) -> bool:
    """Print both routers' figures for each case; return whether the limit holds for all.

    Args:
        start: Runs a router by this module's name and arguments, and returns its port and process id.
        measure: Puts a case's load on a port; returns a row.
    """
    held = True
    with ExitStack() as stack:
        routers = {
            "notes taken": start(stack, "notes", [sys.executable, "-m", "router.cli"]),
            "no notes": start(stack, "silent", [sys.executable, "-m", "loadtest.bench.proxy_silent"]),
        }
        for case in cases:
            rows: dict[str, list[Any]] = {name: [] for name in routers}
            for _ in range(rounds):
                for name, (port, pid) in routers.items():
                    rows[name].append(measure(port, pid, case))
            held = _show(case.name, rows) and held
    return held


def _show(case: str, rows: dict[str, list[Any]]) -> bool:
    for name, found in rows.items():
        per_s, cpu_us = (statistics.median(getattr(row, field) for row in found) for field in ("per_s", "cpu_us"))
        errors = sum(row.errors for row in found)
        print(f"{name:<14}{case:<28}{per_s:8,.0f} requests/s   CPU {cpu_us:7,.1f} us a request   errors {errors}")
    taken, none = rows["notes taken"], rows["no notes"]
    # In pairs, one right after the other: their ratios vary less than the figures.
    fewer = 1 - statistics.median(one.per_s / other.per_s for one, other in zip(taken, none, strict=True))
    more_us = statistics.median(one.cpu_us - other.cpu_us for one, other in zip(taken, none, strict=True))
    share = statistics.median(1 - other.cpu_us / one.cpu_us for one, other in zip(taken, none, strict=True))
    print(
        f"{case}: taking note costs {fewer:.1%} of requests/s, {more_us:.1f} us or {share:.1%} of a request's CPU time "
        f"(limit {LIMIT_SHARE:.0%} of requests/s)",
        flush=True,
    )
    return bool(fewer <= LIMIT_SHARE)


def folder_of(folder: Path, name: str) -> Path:
    """Return a folder of a router's own."""
    own = folder / name
    own.mkdir()
    return own
