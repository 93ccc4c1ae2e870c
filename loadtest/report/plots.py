"""Plots as SVG text, for a page without scripts. All labels are escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 28, 40
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#9467bd", "#8c564b", "#bcbd22")
"""Okabe and Ito's first, which people with colour blindness tell apart."""

Bar = tuple[str, float | None, tuple[float, float] | None]
"""A label, its value, and the ends of its confidence interval."""
Points = Sequence[tuple[float, float | None]]


def bars(title: str, values: Sequence[Bar], unit: str) -> str:
    """Draw horizontal bars with their confidence intervals."""
    high = max((max(value or 0.0, (ends or (0.0, 0.0))[1]) for _, value, ends in values), default=0.0) or 1.0
    row, left = 24, 150
    height = TOP + row * len(values) + 10
    scale = (WIDTH - left - 90) / high
    parts = [_text(8, 18, title, weight="bold")]
    for number, (label, value, ends) in enumerate(values):
        y = TOP + number * row
        parts.append(_text(left - 8, y + 16, label, anchor="end"))
        if value is None:
            parts.append(_text(left + 4, y + 16, "not measured"))
            continue
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{value * scale:.1f}" height="16" fill="{colour}"/>')
        end = value
        if ends is not None:
            low, end = max(0.0, ends[0]), max(value, ends[1])
            x1, x2 = left + low * scale, left + end * scale
            parts.append(f'<path d="M{x1:.1f} {y + 12}H{x2:.1f}" class="interval"/>')
        parts.append(_text(left + end * scale + 6, y + 16, shown(value, unit)))
    return _svg(height, title, parts)


def stacked(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Draw a bar of shares a row: each part over its row's sum."""
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    left, row = 150, 24
    per_line = 4
    legend = TOP + row * len(rows) + 12
    height = legend + 18 * math.ceil(len(names) / per_line) + 6
    parts = [_text(8, 18, title, weight="bold")]
    for number, (label, values) in enumerate(rows.items()):
        y, x, total = TOP + number * row, float(left), sum(values.values()) or 1.0
        parts.append(_text(left - 8, y + 16, label, anchor="end"))
        for name, value in values.items():
            width = (WIDTH - left - RIGHT) * value / total
            colour = COLOURS[names.index(name) % len(COLOURS)]
            told = escape(f"{label}: {name} {value / total:.1%}")
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="16" fill="{colour}">'
                f"<title>{told}</title></rect>"
            )
            x += width
    for number, name in enumerate(names):
        parts += _key(8 + 156 * (number % per_line), legend + 18 * (number // per_line), number, name)
    return _svg(height, title, parts)


def lines(title: str, series: Mapping[str, Points], x_label: str, unit: str, marks: Sequence[float] = ()) -> str:
    """Draw lines; points without a value are left out, `marks` are vertical lines at x."""
    points = [(x, y) for values in series.values() for x, y in values if y is not None]
    if not points:
        return _svg(60, title, [_text(8, 18, title, weight="bold"), _text(8, 44, "not measured")])
    xs = [x for x, _ in points]
    x_low, x_high = min(xs), max(xs)
    y_high = max(y for _, y in points) or 1.0
    x_span = (x_high - x_low) or 1.0
    width, inner = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> str:
        return f"{LEFT + (x - x_low) / x_span * width:.1f},{TOP + inner * (1 - y / y_high):.1f}"

    parts = [_text(8, 18, title, weight="bold")]
    for part in range(5):
        y = TOP + inner * (1 - part / 4)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(_text(LEFT - 6, y + 4, shown(y_high * part / 4, unit), anchor="end"))
        x = LEFT + width * part / 4
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{x_low + x_span * part / 4:.3g}", anchor="middle"))
    parts.append(_text(LEFT + width / 2, HEIGHT - 6, x_label, anchor="middle"))
    for mark in marks:
        if x_low <= mark <= x_high:
            x = LEFT + (mark - x_low) / x_span * width
            parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + inner}" class="mark"/>')
    for number, values in enumerate(series.values()):
        placed = " ".join(place(x, y) for x, y in values if y is not None)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{placed}" fill="none" stroke="{colour}" stroke-width="2"/>')
    height = HEIGHT + 18 * math.ceil(len(series) / 4)
    for number, name in enumerate(series):
        parts += _key(8 + 156 * (number % 4), HEIGHT + 18 * (number // 4), number, name)
    return _svg(height, title, parts)


def shown(value: float | None, unit: str) -> str:
    """Return a value as people read it."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "s":
        return f"{value * 1000:,.0f} ms" if abs(value) < 10 else f"{value:,.1f} s"
    if unit == "ratio":
        return f"{value:.2f}"
    return f"{value:,.0f} {unit}".rstrip()


def _key(x: float, y: float, number: int, name: str) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    return [f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>', _text(x + 14, y + 9, name)]


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{body}</svg>'
