"""How a search for weights is shown: every candidate, and what the best gives on other traffic."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from router.tools.simulation.tuning import TUNED, Candidate, Tuning


def show_tuning(tuning: Tuning, source: str, other: str, console: Console) -> None:
    """Print all candidates in the order of trying, then the check.

    Args:
        source, other: What was tuned on, and what was held out.
    """
    console.print(f"[bold]tuned on {source}[/bold]", highlight=False)
    table = _table()
    for number, candidate in enumerate(tuning.candidates, 1):
        note = " best" if candidate is tuning.best else " default" if number == 1 else ""
        table.add_row(f"{number}{note}", *_cells(candidate), style="bold" if candidate is tuning.best else None)
    console.print(table)
    if tuning.cut_short:
        console.print("the budget ended the search before all candidates were tried (`--budget`)", highlight=False)
    console.print(f"[bold]held out: {other}[/bold]", highlight=False)
    table = _table()
    for name, candidate in zip(("default", "best"), tuning.held_out, strict=True):
        table.add_row(name, *_cells(candidate))
    console.print(table)
    if tuning.kept == tuning.held_out[0].weights:
        console.print("kept: the default weights, which nothing beat on both", highlight=False)


def tuning_dict(tuning: Tuning) -> dict[str, Any]:
    """Return it for JSON."""
    default, best = tuning.held_out
    return {
        "candidates": [_to_dict(candidate) for candidate in tuning.candidates],
        "held_out": {"default": _to_dict(default), "best": _to_dict(best)},
        "weights": tuning.kept,
        "cut_short": tuning.cut_short,
    }


def _to_dict(candidate: Candidate) -> dict[str, Any]:
    return {"weights": candidate.weights, **candidate.row.to_dict()}


def _table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("candidate", no_wrap=True)
    for name in (*TUNED, "goodput", "p90", "hit rate"):
        table.add_column(name, justify="right")
    return table


def _cells(candidate: Candidate) -> list[str]:
    row = candidate.row
    weights = [f"{candidate.weights[name]:g}" for name in TUNED]
    return [*weights, f"{row.goodput_share:.1%}", f"{row.ttft_p90_s:.2f} s", f"{row.hit_rate:.3f}"]
