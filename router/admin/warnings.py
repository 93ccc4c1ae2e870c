"""What is wrong right now, with what to do: what a router can tell by itself of what `warmroute doctor` looks at. Pure.

Each rule reads the rows of `router.admin.overview`. Warnings that differ in their subject alone are one, with all of
the subjects, so that a fleet of 200 with one fault has one warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from router.admin.remedies import PREDICTIONS, PROOF, READY, REMEDIES, REPLICAS, START_AGENT, TOKEN_DETAILS

STALE_S = 15.0
"""An agent says every second that it is there; so late, its replica's blocks are old news."""
HOT_SHARE = 2.0
HOT_REQUESTS = 8
"""A hot spot has so many times the mean of all replicas' requests, and at least so many."""
MAX_SUBJECTS = 200
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        id: Stable; where `warmroute doctor` has a check for it, that one's.
        is_wrong: Red, not yellow.
        subject: Which replica or key; empty where there is one only.
    """

    id: str
    is_wrong: bool
    title: str
    detail: str
    remedy: str
    subject: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "id": self.id,
            "status": "wrong" if self.is_wrong else "warning",
            "title": self.title,
            "detail": self.detail,
            "remedy": self.remedy,
            "subjects": [self.subject] if self.subject else [],
        }


def fleet_warnings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what is wrong with replicas."""
    rules: tuple[Callable[[Sequence[Row]], Iterator[Fault]], ...] = (
        _out_of_rotation,
        _distrusted,
        _not_exact,
        _stale,
        _hot,
        _silent,
    )
    return joined(found.to_dict() for rule in rules for found in rule(rows))


def router_warnings(not_ready: Sequence[str], reload: Row, queue: float) -> list[dict[str, Any]]:
    """Return what is wrong with the router itself.

    Args:
        reload: As `/admin/config` has it.
        queue: Requests that wait.
    """
    found = [Fault(READY, True, "The router is not ready", reason, REMEDIES[READY]) for reason in not_ready]
    if reload["result"] == "failed":
        remedy = "correct the file; until then the configuration before it stays in force"
        found += [
            Fault("config.reload", True, "The configuration can't be loaded", problem, remedy)
            for problem in reload["problems"]
        ]
    if reload["needs_restart"]:
        keys = ", ".join(reload["needs_restart"])
        detail = f"changed and not in force: {keys}"
        found.append(Fault("config.restart", False, "A restart is needed", detail, "restart the router"))
    if queue:
        detail = f"{queue:,.0f} requests wait for a replica with room"
        remedy = "add replicas, or raise limits.max_in_flight where engines have room"
        found.append(Fault("queue", False, "Requests wait", detail, remedy))
    return joined(each.to_dict() for each in found)


def joined(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join those that differ in their subjects alone; what is wrong comes first."""
    by_rest: dict[tuple[str, ...], dict[str, Any]] = {}
    for each in found:
        key = tuple(str(value) for name, value in each.items() if name != "subjects")
        known = by_rest.setdefault(key, {**each, "subjects": []})
        new = [subject for subject in each["subjects"] if subject not in known["subjects"]]
        known["subjects"] = (known["subjects"] + new)[:MAX_SUBJECTS]
    return sorted(by_rest.values(), key=lambda each: each["status"] != "wrong")


def _out_of_rotation(rows: Sequence[Row]) -> Iterator[Fault]:
    for row in rows:
        state = row["state"]
        if state == "draining":
            yield Fault(
                REPLICAS, False, "Draining", "takes no new requests", "wait until it is gone or back", row["replica"]
            )
        elif state != "ready":
            why = row["down_reason"] or f"{row['failures_in_a_row']} failures in a row"
            yield Fault(REPLICAS, True, f"Replica {state}", why, REMEDIES[REPLICAS], row["replica"])


def _distrusted(rows: Sequence[Row]) -> Iterator[Fault]:
    for row in rows:
        for doubt in row["doubts"]:
            detail = f"{doubt['model']} ({doubt['kind']}): {doubt['explanation']}"
            yield Fault(PREDICTIONS, True, "Predictions fail", detail, REMEDIES[PREDICTIONS], row["replica"])


def _not_exact(rows: Sequence[Row]) -> Iterator[Fault]:
    for row in rows:
        if row["state"] == "down" or row["trust"] in ("exact", "mapped", "none"):
            continue
        if row["source"] != "redis":
            detail = "known by address alone: the router remembers what it sent there and hears of no eviction"
            remedy = START_AGENT.format(url="ENGINE")
            yield Fault(PROOF, False, "Without an agent", detail, remedy, row["replica"])
        else:
            detail = row["trust_reason"] or "no reason was told"
            yield Fault(PROOF, True, f"Trust is {row['trust']}", detail, REMEDIES[PROOF], row["replica"])


def _stale(rows: Sequence[Row]) -> Iterator[Fault]:
    for row in rows:
        if row["state"] != "down" and row["index_age_s"] is not None and row["index_age_s"] > STALE_S:
            detail = f"nothing was heard of their blocks for over {STALE_S:g} s"
            remedy = "look at their agents' logs and at Redis; routing goes on with what was known"
            yield Fault("index.stale", True, "The index is stale", detail, remedy, row["replica"])


def _hot(rows: Sequence[Row]) -> Iterator[Fault]:
    ready = [row for row in rows if row["state"] == "ready"]
    usual = mean([row["requests"] for row in ready]) if ready else 0.0
    for row in ready:
        if len(ready) > 1 and row["requests"] >= max(HOT_REQUESTS, HOT_SHARE * usual):
            detail = f"over {HOT_SHARE:g} times the mean of requests in flight"
            remedy = "see its decisions: where one prefix draws all, raise placement.weights for load"
            yield Fault("placement.hot_spot", False, "Hot spot", detail, remedy, row["replica"])


def _silent(rows: Sequence[Row]) -> Iterator[Fault]:
    for row in rows:
        window = row["window"]
        served = window["requests"] - window["failed"]
        if served > 0 and not window["prompt_tokens"]:
            detail = "usage has no cached tokens: what was delivered counts as unobserved"
            yield Fault(TOKEN_DETAILS, False, "Hits are not reported", detail, REMEDIES[TOKEN_DETAILS], row["replica"])
