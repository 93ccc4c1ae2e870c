"""What the doctor says: findings, and the page or the JSON made of them. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

WIDTH = 110
MAX_FINDINGS = 4
"""Findings of one check that are shown on the page; JSON has all."""


class Status(IntEnum):
    """How a finding weighs: the highest one of a check is the check's."""

    SKIPPED = 0
    FINE = 1
    WARNING = 2
    WRONG = 3

    @property
    def word(self) -> str:
        """What stands on the page and in JSON."""
        return {Status.SKIPPED: "skipped", Status.FINE: "ok", Status.WARNING: "warning", Status.WRONG: "WRONG"}[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check saw.

    Attributes:
        status: How it weighs.
        detail: In words, with the figures.
        subject: Which replica, rank or model; empty where there is one only.
        remedy: What to do or type, where it is another than the check's own.
        lines: More to show under it, line by line.
    """

    status: Status
    detail: str
    subject: str = ""
    remedy: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One check's findings.

    Attributes:
        id: The check's stable id.
        title: What was checked.
        meaning: Why it matters.
        remedy: What to do where a finding names nothing better.
        findings: At least one.
    """

    id: str
    title: str
    meaning: str
    remedy: str
    findings: Sequence[Finding] = field(default_factory=tuple)

    @property
    def status(self) -> Status:
        """The heaviest finding's."""
        return max((finding.status for finding in self.findings), default=Status.SKIPPED)


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 when something is wrong, else 0; warnings are not wrong."""
    return int(any(result.status is Status.WRONG for result in results))


def to_json(results: Sequence[Result], examined: str) -> str:
    """Return one JSON object."""
    return json.dumps(
        {
            "examined": examined,
            "ok": exit_code(results) == 0,
            "checks": [
                {
                    "id": result.id,
                    "title": result.title,
                    "status": result.status.word.lower(),
                    "meaning": result.meaning,
                    "findings": [
                        {
                            "status": finding.status.word.lower(),
                            "subject": finding.subject,
                            "detail": finding.detail,
                            "remedy": (finding.remedy or result.remedy) if finding.status >= Status.WARNING else "",
                            "lines": list(finding.lines),
                        }
                        for finding in result.findings
                    ],
                }
                for result in results
            ],
        },
        ensure_ascii=False,
    )


def page(results: Sequence[Result], examined: str) -> str:
    """Return the page: a line a check, then what is wrong with what to type."""
    lines = [f"warmroute doctor: {examined}", ""]
    id_width = max((len(result.id) for result in results), default=0)
    for result in results:
        lines += _row(result, id_width)
    faults = [result for result in results if result.status >= Status.WARNING]
    for result in faults:
        lines += ["", f"{result.status.word}: {result.title} ({result.id})", *_wrapped(result.meaning, "  ")]
        lines += _findings(result)
    counts = {status: sum(result.status is status for result in results) for status in Status}
    told = [f"{counts[status]} {status.word}" for status in reversed(Status) if counts[status]]
    return "\n".join([*lines, "", ", ".join(told) or "nothing was checked"])


def _row(result: Result, id_width: int) -> list[str]:
    head = f"{result.status.word:<8} {result.id:<{id_width}}  "
    worst = [finding for finding in result.findings if finding.status is result.status]
    text = _said(worst[0]) if worst else ""
    if len(worst) > 1:
        same = all(finding.detail == worst[0].detail for finding in worst)
        text = f"{len(worst)} of {len(result.findings)}: {worst[0].detail}" if same else f"{text} (of {len(worst)})"
    room = max(30, WIDTH - len(head))
    lines = [head + textwrap.shorten(text, room, placeholder=" ...")]
    if result.status is Status.FINE:
        lines += [" " * len(head) + line for finding in worst[:MAX_FINDINGS] for line in finding.lines]
    return lines


def _findings(result: Result) -> list[str]:
    lines: list[str] = []
    shown = _merged([finding for finding in result.findings if finding.status is result.status])
    told: set[str] = set()
    for finding in shown[:MAX_FINDINGS]:
        lines += _wrapped(_said(finding), "  - ", "    ")
        lines += [f"      {line}" for line in finding.lines]
        remedy = finding.remedy or result.remedy
        if remedy and remedy not in told:
            told.add(remedy)
            lines += _wrapped(remedy, "    do: ", "        ")
    if len(shown) > MAX_FINDINGS:
        lines.append(f"  ... and {len(shown) - MAX_FINDINGS} more (--json has all)")
    return lines


def _merged(findings: list[Finding]) -> list[Finding]:
    """Join findings that differ in their subject alone."""
    subjects: dict[Finding, list[str]] = {}
    for finding in findings:
        subjects.setdefault(replace(finding, subject=""), []).append(finding.subject)
    return [replace(finding, subject=", ".join(filter(None, names))) for finding, names in subjects.items()]


def _said(finding: Finding) -> str:
    return f"{finding.subject}: {finding.detail}" if finding.subject else finding.detail


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    rest = first if rest is None else rest
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
