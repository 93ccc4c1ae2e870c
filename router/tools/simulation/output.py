"""How a simulation's rows are shown: a table, a bar while it runs, a page with plots."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from router.errors import ConfigurationError, Problem
from router.tools.simulation.figures import Row

COLUMNS = {
    "hit_rate": ("hit rate", "{:.3f}"),
    "ttft_p50_s": ("p50", "{:.2f} s"),
    "ttft_p90_s": ("p90", "{:.2f} s"),
    "ttft_p99_s": ("p99", "{:.2f} s"),
    "imbalance": ("imbalance", "{:.2f}"),
    "output_tokens_per_s": ("tokens/s", "{:,.0f}"),
    "goodput_share": ("goodput", "{:.1%}"),
    "queue_s": ("queue", "{:.2f} s"),
}
"""By the row's field: heading and form."""
UPDATE_EVERY = 100
"""Requests between two strokes of the bar."""


class Progress:
    """A bar on standard error; nothing where that is no terminal."""

    def __init__(self, total: int) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.disable = not self._bar.console.is_terminal
        self._task = self._bar.add_task("", total=total)
        self._pending = 0

    def now(self, policy: str) -> None:
        """This policy runs."""
        self._bar.update(self._task, description=policy)

    def step(self) -> None:
        """A request has arrived."""
        self._pending += 1
        if self._pending == UPDATE_EVERY:
            self._bar.advance(self._task, self._pending)
            self._pending = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()


def show(rows: Sequence[Row], bound: float, console: Console) -> None:
    """Print the table. `bound` is one shared cache's hit rate."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("policy", no_wrap=True)
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("of bound", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.policy, *_cells(row), f"{row.hit_rate / bound:.0%}" if bound else "-")
    console.print(table)
    console.print(
        f"p50, p90, p99: time to first token. Bound: one cache as large as the fleet's together hits {bound:.3f}",
        highlight=False,
    )


def _cells(row: Row) -> list[str]:
    return [form.format(getattr(row, name)) for name, (_, form) in COLUMNS.items()]


def write_html(path: Path, rows: Sequence[Row], bound: float) -> None:
    """Write one page that needs nothing else.

    Raises:
        ConfigurationError: It can't be written there.
    """
    plots = "".join(_plot(heading, form, [(row.policy, getattr(row, name)) for row in rows])
                    for name, (heading, form) in COLUMNS.items())  # fmt: skip
    headings = "".join(f"<th>{heading}</th>" for heading, _ in COLUMNS.values())
    lines = "".join(
        f"<tr><th>{html.escape(row.policy)}</th>" + "".join(f"<td>{cell}</td>" for cell in _cells(row)) + "</tr>"
        for row in rows
    )
    write_text("--html", path, _PAGE.format(headings=headings, lines=lines, plots=plots, bound=f"{bound:.3f}"))


def write_text(option: str, path: Path, text: str) -> None:
    """Write what an option asked for.

    Raises:
        ConfigurationError: It can't be written there.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            [Problem(option, f"{path}: {error.strerror}", "a place that can be written")]
        ) from None


def _plot(heading: str, form: str, bars: Sequence[tuple[str, float]]) -> str:
    most = max((value for _, value in bars), default=0.0) or 1.0
    rows = "".join(
        f'<text x="0" y="{y + 14}">{html.escape(name)}</text>'
        f'<rect x="160" y="{y}" width="{max(1.0, 360 * value / most):.1f}" height="18"/>'
        f'<text x="{166 + 360 * value / most:.1f}" y="{y + 14}">{form.format(value)}</text>'
        for y, (name, value) in zip(range(0, 24 * len(bars), 24), bars, strict=True)
    )
    return f'<figure><figcaption>{heading}</figcaption><svg width="640" height="{24 * len(bars)}">{rows}</svg></figure>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>warmroute simulate</title>
<style>
:root {{ color-scheme: light dark; font-family: system-ui, sans-serif; }}
body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }}
th, td {{ padding: .25rem .75rem; text-align: right; }} tr > th:first-child {{ text-align: left; }}
figure {{ margin: 1.5rem 0; overflow-x: auto; }} figcaption {{ font-weight: 600; margin-bottom: .5rem; }}
svg text {{ fill: CanvasText; font-size: 13px; }} svg rect {{ fill: #3b82c4; }}
</style></head><body>
<h1>Simulated placement</h1>
<table><thead><tr><th>policy</th>{headings}</tr></thead><tbody>{lines}</tbody></table>
<p>One cache as large as the fleet's together hits {bound}.</p>
{plots}
</body></html>
"""
