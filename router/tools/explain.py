"""Why a request went where it went, or would go: `warmroute explain REQUEST-ID | --body FILE --router URL`.

Prints each candidate with what it holds of the prompt and what it costs, and one sentence that says what decided. A
body is placed as if it came now, and nothing is sent. Exit code 1 where the router does not know the request, or can't
place the body.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from router.errors import Problem
from router.tools.admin_server import add_server_options, server_of
from router.tools.doctor_http import Answer, Server

FINE, WRONG = 0, 1
EXPLAIN_TIMEOUT_S = 60.0
MAX_ROWS = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("request_id", metavar="REQUEST-ID", nargs="?", help="x-request-id of an answer, while its decision is kept")
    add("--body", metavar="FILE", help="an OpenAI body instead, - for standard input: the decision it would get now")
    add("--path", metavar="PATH", help="with --body: its endpoint (default: by the body, chat or completions)")
    add("--policy", metavar="NAME", help="with --body: under another policy (default: the router's)")
    add(
        "--weight",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="with --body: under another weight of `placement.weights`; may be repeated (default: the router's)",
    )
    add_server_options(parser)
    add("--json", action="store_true", help="print the decision as JSON (default: a table and a sentence)")


def run(args: argparse.Namespace) -> int:
    """Ask the router and print what it says.

    Raises:
        ConfigurationError: The options can't be used.
    """
    problems: list[Problem] = []
    if (args.request_id is None) == (args.body is None):
        problems.append(Problem("REQUEST-ID or --body", "give one of both"))
    if args.body is None and (args.path or args.policy or args.weight):
        problems.append(Problem("--path, --policy, --weight", "are for --body alone: what was decided stays as it is"))
    weights = _weights(args.weight, problems)
    body = _body(args.body, problems)
    server = server_of(args, problems)
    answer = _ask_body(server, body, args, weights) if body is not None else _ask_id(server, args.request_id)
    if not answer.ok:
        print(f"warmroute explain: the router {answer.why()}", file=sys.stderr)
        return WRONG
    decision = answer.object()
    print(json.dumps(decision) if args.json else in_words(decision))
    return FINE


def _ask_id(server: Server, request_id: str) -> Answer:
    return server.get(f"/admin/decisions/{quote(request_id, safe='')}")


def _ask_body(server: Server, body: bytes, args: argparse.Namespace, weights: Mapping[str, float]) -> Answer:
    query = {"path": args.path, "policy": args.policy, "weights": json.dumps(weights) if weights else None}
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return server.post(f"/admin/explain{'?' + given if given else ''}", body, EXPLAIN_TIMEOUT_S)


def _weights(given: Sequence[str], problems: list[Problem]) -> dict[str, float]:
    weights = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            problems.append(Problem("--weight", f"{text!r} is no NAME=NUMBER", "write it as price_base=2"))
    return weights


def _body(name: str | None, problems: list[Problem]) -> bytes | None:
    if name is None:
        return None
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        problems.append(Problem("--body", f"can't read {name}: {error.strerror}"))
        return b""


COLUMNS: tuple[tuple[str, str], ...] = (
    ("unit", "unit"),
    ("trust", "trust"),
    ("matched", "matched_tokens"),
    ("gpu", "gpu_tokens"),
    ("cpu", "cpu_tokens"),
    ("disk", "disk_tokens"),
    ("expected", "expected_tokens"),
    ("uncached", "uncached_tokens"),
    ("waiting", "backlog_tokens"),
    ("running", "running"),
)
"""Heading and field of a candidate; its terms and cost follow."""


def in_words(decision: Mapping[str, Any]) -> str:
    """Return a decision, as `/admin/decisions/{id}` gives it, as a table and sentences."""
    candidates = decision["candidates"][:MAX_ROWS]
    terms = list(dict.fromkeys(name for item in candidates for name in item["terms"]))
    rows = [["", *(heading for heading, _ in COLUMNS), *terms, "cost"]]
    for item in candidates:
        mark = "->" if item["unit"] == decision["winner"] else ""
        figures = [_cell(item[field]) for _, field in COLUMNS]
        rows.append([mark, *figures, *(_cell(item["terms"].get(name)) for name in terms), _cell(item["cost"])])
    lines = [_head(decision), "", *_table(rows)]
    left_out = len(decision["candidates"]) - len(candidates) + decision.get("candidates_left_out", 0)
    if left_out:
        lines.append(f"   and {left_out} more that cost more")
    lines += [f"   {replica} removed: {why}" for replica, why in list(decision["removed"].items())[:MAX_ROWS]]
    lines += ["", _sentence(decision["why"])]
    if decision.get("what_came"):
        lines += [decision["what_came"], *_ending(decision["outcome"])]
    return "\n".join(lines)


def _head(decision: Mapping[str, Any]) -> str:
    parts = [
        f"model {decision['model']}",
        f"policy {decision['policy']}",
        f"{decision['prompt_tokens']:,} prompt tokens",
        f"price {decision['price']:g}",
        "all figures in tokens",
    ]
    return f"{decision['request_id'] or 'this body'}: {', '.join(parts)}"


def _ending(outcome: Mapping[str, Any] | None) -> list[str]:
    if outcome is None or outcome["total_s"] is None:
        return []
    first = "" if outcome["ttft_s"] is None else f"first token after {outcome['ttft_s'] * 1000:,.0f} ms, "
    return [f"Status {outcome['status']}, {first}ended after {outcome['total_s'] * 1000:,.0f} ms."]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith(("it ", "costs ", "nothing ", "the ")) else text


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (int, float)):
        return f"{value:,.0f}"
    return str(value)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(_aligned(cell, widths[place], place) for place, cell in enumerate(row)).rstrip() for row in rows]


def _aligned(cell: str, width: int, place: int) -> str:
    return cell.ljust(width) if place <= 2 else cell.rjust(width)
