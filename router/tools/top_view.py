"""What `warmroute top` shows: figures from `/admin/overview`, and how they lie on a screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from router.tools.doctor_http import Server
from router.tools.top_figures import count, hit_share, percent, rates, seconds, ttft_s

Row = Mapping[str, Any]
STATES = ("down", "ejected", "draining", "ready")
STYLES = {"down": "bold red", "ejected": "bold red", "draining": "yellow", "ready": "green"}
TRUST_STYLES = {"exact": "green", "mapped": "green", "approximate": "yellow"}
DECISIONS = ("latest", "slowest", "surprising", "")
STALE_S = 15.0
SPARE_LINES = 2
"""The table's head and the keys."""
MAX_WARNINGS = 5
MAX_DECISIONS = 6


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the fleet.

    Attributes:
        value: To sort by; None is last.
        text: What stands there.
        needs: Columns of a screen that has room for it.
    """

    key: str
    title: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]
    style: Callable[[Row], str] = lambda row: ""
    is_number: bool = True
    needs: int = 0


COLUMNS: tuple[Column, ...] = (
    Column("replica", "Replica", lambda r: r["replica"], lambda r: r["replica"], is_number=False),
    Column(
        "state", "State", lambda r: STATES.index(r["state"]), lambda r: r["state"], lambda r: STYLES[r["state"]], False
    ),
    Column(
        "trust",
        "Trust",
        lambda r: r["trust"],
        lambda r: r["trust"] + ("!" if r["doubts"] else ""),
        lambda r: "red" if r["doubts"] else TRUST_STYLES.get(r["trust"], ""),
        False,
    ),
    Column("requests", "Flight", lambda r: r["requests"], lambda r: count(r["requests"])),
    Column("running", "Run", lambda r: r["running"], lambda r: count(r["running"])),
    Column(
        "waiting",
        "Wait",
        lambda r: r["waiting"],
        lambda r: count(r["waiting"]),
        lambda r: "yellow" if r["waiting"] else "",
    ),
    Column("backlog", "Backlog", lambda r: r["backlog_tokens"], lambda r: count(r["backlog_tokens"]), needs=90),
    Column(
        "kv",
        "KV",
        lambda r: r["kv_share"],
        lambda r: percent(r["kv_share"]),
        lambda r: "red" if (r["kv_share"] or 0) > 0.95 else "",
    ),
    Column("blocks", "Blocks", lambda r: r["blocks"], lambda r: count(r["blocks"]), needs=100),
    Column("hit", "Hit 1m", hit_share, lambda r: percent(hit_share(r))),
    Column("ttft", "TTFT 1m", ttft_s, lambda r: seconds(ttft_s(r))),
    Column("ended", "Ended", lambda r: r["window"]["requests"], lambda r: count(r["window"]["requests"]), needs=110),
    Column(
        "failed",
        "Failed",
        lambda r: r["window"]["failed"],
        lambda r: count(r["window"]["failed"]),
        lambda r: "red" if r["window"]["failed"] else "",
        needs=110,
    ),
    Column(
        "age",
        "Age",
        lambda r: r["index_age_s"],
        lambda r: seconds(r["index_age_s"]),
        lambda r: "red" if (r["index_age_s"] or 0) > STALE_S and r["state"] != "down" else "",
    ),
    Column(
        "models",
        "Models",
        lambda r: ",".join(r["models"]),
        lambda r: ", ".join(r["models"]),
        is_number=False,
        needs=120,
    ),
)


@dataclass(slots=True)
class View:
    """What was seen last.

    Attributes:
        overview: The last answer.
        error: Why the last look failed, in words; empty.
    """

    server: Server
    overview: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    _before: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> bool:
        """Ask again; what was seen before stays when the router does not answer."""
        answer = self.server.get("/admin/overview")
        found = answer.object()
        if "replicas" not in found:
            self.error = answer.why() if not answer.ok else "has no /admin/overview: it is older than this command"
            return False
        self.error, self.overview = "", found
        self._before = [*self._before, found][-30:]
        return True

    @property
    def rates(self) -> dict[str, float | None]:
        """What happened since the oldest of the last 30 looks."""
        return rates(self._before[0], self._before[-1])


@dataclass(slots=True)
class Shown:
    """What the operator wants to see."""

    sort: str = "state"
    descending: bool = False
    first: int = 0
    rows: int = 10
    warnings: bool = True
    decisions: int = 0
    held: bool = False

    def press(self, key: str, replicas: int) -> None:
        """Do what a key is for; others do nothing."""
        last = max(0, replicas - self.rows)
        steps = {"up": -1, "down": 1, "page-up": -self.rows, "page-down": self.rows, "home": -replicas, "end": replicas}
        if key in steps:
            self.first = min(last, max(0, self.first + steps[key]))
        elif key in ("s", "S"):
            keys = [column.key for column in COLUMNS]
            self.sort = keys[(keys.index(self.sort) + (1 if key == "s" else -1)) % len(keys)]
            self.descending = next(column.is_number for column in COLUMNS if column.key == self.sort)
        elif key == "r":
            self.descending = not self.descending
        elif key == "w":
            self.warnings = not self.warnings
        elif key == "d":
            self.decisions = (self.decisions + 1) % len(DECISIONS)
        elif key == " ":
            self.held = not self.held


def screen(view: View, shown: Shown, width: int, height: int | None) -> RenderableType:
    """Return the whole screen.

    Args:
        height: Lines; None: as many as there is to tell.
    """
    parts: list[RenderableType] = [*_head(view, shown)]
    if shown.warnings:
        parts += _warnings(view.overview["warnings"], width)
    kind = DECISIONS[shown.decisions]
    decisions = view.overview["decisions"][kind][:MAX_DECISIONS] if kind else []
    taken = len(parts) + (len(decisions) + 2 if kind else 0) + SPARE_LINES
    if height is not None:
        shown.rows = max(3, height - taken)
    shown.first = min(shown.first, max(0, len(view.overview["replicas"]) - shown.rows))
    parts.append(_fleet(view.overview["replicas"], shown, width))
    if kind:
        parts.append(_decisions(kind, decisions, width))
    if height is not None:
        parts.append(_keys(shown, len(view.overview["replicas"])))
    return Group(*parts)


def _head(view: View, shown: Shown) -> list[Text]:
    seen, found = view.overview, view.rates
    rows, totals = seen["replicas"], seen["totals"]
    ready = sum(row["state"] == "ready" for row in rows)
    at = time.strftime("%H:%M:%S", time.localtime(seen["at"]))
    first = Text.assemble(
        ("warmroute ", "bold"),
        (f"{seen['version']}  ", ""),
        ("ready" if seen["ready"] else "not ready: " + "; ".join(seen["reasons"]), "green" if seen["ready"] else "red"),
        f"  {at}",
        ("  held" if shown.held else "", "yellow"),
        (f"  no answer: {view.error}" if view.error else "", "bold red"),
        no_wrap=True,
        overflow="ellipsis",
    )
    second = Text(
        f"replicas {ready}/{len(rows)}   {count(found['requests_per_s'])} req/s   "
        f"hit {percent(found['hit'])} of {percent(found['available'])}   "
        f"TTFT p50 {seconds(found['p50'])} p90 {seconds(found['p90'])}   "
        f"queue {count(totals['queue'])}   in flight {count(totals['in_flight'])}   "
        f"failed {percent(found['failed'])}   blocks {count(seen['index']['blocks'])}",
        no_wrap=True,
        overflow="ellipsis",
    )
    return [first, second, Text("")]


def _warnings(found: list[dict[str, Any]], width: int) -> list[Text]:
    lines = []
    for each in found[:MAX_WARNINGS]:
        style = "bold red" if each["status"] == "wrong" else "yellow"
        names = each["subjects"]
        who = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        line = Text.assemble(
            (f"{each['title']}", style), f" {who}: {each['detail']}. ", (f"Do: {each['remedy']}", "dim")
        )
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    if len(found) > MAX_WARNINGS:
        lines.append(Text(f"and {len(found) - MAX_WARNINGS} more warnings", style="yellow"))
    return [*lines, Text("")] if lines else []


def ordered(rows: list[dict[str, Any]], shown: Shown) -> list[dict[str, Any]]:
    """Return rows in the order that is wanted; what is unknown comes last."""
    column = next(each for each in COLUMNS if each.key == shown.sort)
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    return sorted(known, key=column.value, reverse=shown.descending) + unknown


def _fleet(rows: list[dict[str, Any]], shown: Shown, width: int) -> Table:
    table = Table(box=None, padding=(0, 1), expand=True, header_style="bold")
    columns = [column for column in COLUMNS if width >= column.needs]
    for column in columns:
        mark = (" v" if shown.descending else " ^") if column.key == shown.sort else ""
        table.add_column(
            column.title + mark,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            style="bold" if column.key == "replica" else "",
        )
    for row in ordered(rows, shown)[shown.first : shown.first + shown.rows]:
        table.add_row(*(Text(column.text(row), style=column.style(row)) for column in columns))
    return table


def _decisions(kind: str, rows: list[dict[str, Any]], width: int) -> Table:
    table = Table(
        box=None, padding=(0, 1), expand=True, header_style="bold", title=f"Decisions: {kind}", title_justify="left"
    )
    for title, right in (("Request", False), ("To", False), ("By", False), ("Prompt", True), ("Best", True)):
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for title in ("Predicted", "Delivered", "TTFT"):
        table.add_column(title, justify="right", no_wrap=True)
    if width >= 120:
        table.add_column("Surprise", no_wrap=True)
    for row in rows:
        cells = [row["request_id"][:26], row["winner"], row["reason"], count(row["prompt_tokens"])]
        cells += [count(row["available_tokens"]), count(row["matched_tokens"]), count(row["delivered_tokens"])]
        cells += [seconds(row["ttft_s"])] + ([row["surprise"]] if width >= 120 else [])
        table.add_row(*map(Text, cells))
    return table


def _keys(shown: Shown, replicas: int) -> Text:
    last = min(replicas, shown.first + shown.rows)
    where = f"{shown.first + 1 if replicas else 0} to {last} of {replicas}"
    return Text(
        f"{where}   q end   s sort   r turn   arrows move   w warnings   d decisions   space hold",
        style="dim",
        no_wrap=True,
        overflow="ellipsis",
    )
