"""Why a request went where it went, in one sentence. Works on a Decision as JSON has it, so a terminal can say it too.

The sentence names what decided, with the figures that show it: what the winner holds, what it costs against the one
that would have been next, and, where another replica held more of the prompt, what kept the request from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

REMOVED = {
    "tried": "failed this request before",
    "full": "had no room",
    "draining": "is draining",
    "ejected": "was left alone after failures",
    "down": "is down",
}
"""What each filter's word means."""
MAX_NAMED = 3
"""Removed or tried replicas that are named; of more, the number is told."""
View = Mapping[str, Any]


def sentence(decision: View) -> str:
    """Return why the winner won, for a Decision as `Decision.to_dict` gives it. Never raises for a reason it does not
    know: policies may come that bring their own."""
    case = _Case(decision)
    return f"{case.before()}{case.why()}{case.after()}."


def outcome_sentence(decision: View) -> str | None:
    """Return what came of it, against the prediction; None before the request ended."""
    outcome = decision.get("outcome")
    if outcome is None:
        return None
    if outcome.get("error"):
        return f"It ended with the router's error `{outcome['error']}`."
    if outcome.get("aborted"):
        return "The client left before the answer was complete."
    status = outcome.get("status")
    if status is None or not 200 <= status < 300:
        return f"The engine answered with status {status}."
    cached, predicted = outcome.get("cached_tokens"), decision["matched_tokens"]
    if cached is None:
        return f"The engine did not report what it had cached; {_tokens(predicted)} were predicted."
    if cached == predicted:
        return f"The engine had {_tokens(cached)} cached, as predicted."
    more = f"{abs(cached - predicted):,} {'more' if cached > predicted else 'fewer'} than predicted"
    return f"The engine had {_tokens(cached)} cached, {more}."


class _Case:
    """One decision, taken apart."""

    def __init__(self, decision: View) -> None:
        self.decision = decision
        self.candidates: Sequence[View] = decision.get("candidates") or ()
        replicas = [item["replica"] for item in self.candidates]
        self.by_unit = len(set(replicas)) < len(replicas)
        found = [item for item in self.candidates if item["unit"] == decision["winner"]]
        tried = decision.get("retries") or ()
        removed = decision.get("removed") or {}
        self.removed = {name: why for name, why in removed.items() if not (why == "tried" and name in tried)}
        self.winner: View | None = found[0] if found else None
        self.others = [item for item in self.candidates if item is not self.winner]
        self.name = self.name_of(self.winner) if self.winner is not None else str(decision["winner"])

    def name_of(self, candidate: View) -> str:
        """The replica's name where it has one unit, else the unit's."""
        return str(candidate["unit"] if self.by_unit else candidate["replica"])

    # -- what was before ----------------------------------------------------------------------------------------------

    def before(self) -> str:
        """What happened to the request before it was placed."""
        parts = []
        if self.decision.get("queued_s"):
            parts.append(f"it waited {_seconds(self.decision['queued_s'])} for a replica with room")
        if self.decision.get("retries"):
            tried = _listed(self.decision["retries"])
            parts.append(f"{tried} {'was' if len(self.decision['retries']) == 1 else 'were'} tried before and failed")
        if self.decision.get("prompt_reason"):
            parts.append(f"the prompt was not understood to its end ({self.decision['prompt_reason']})")
        if not parts:
            return ""
        text = ", ".join(parts)
        return f"{text}; then "

    # -- why ----------------------------------------------------------------------------------------------------------

    def why(self) -> str:
        """The rule that decided, with its figures."""
        reasons: dict[str, Callable[[], str]] = {
            "only": self._only,
            "cost": self._cost,
            "prefix": self._prefix,
            "owner": self._owner,
            "least-loaded": self._least_loaded,
            "random": self._random,
            "turn": lambda: f"{self.name} was next in turn",
            "affinity": lambda: f"{self.name} took it, since its session is there",
        }
        reason = self.decision["reason"]
        return reasons[reason]() if reason in reasons else f"{self.name} was chosen by the rule `{reason}`"

    def _only(self) -> str:
        if not self.decision.get("removed"):
            return f"{self.name} is the only replica that serves the model{self._held()}"
        return f"{self.name} was the only one left{f': {_removed(self.removed)}' if self.removed else ''}{self._held()}"

    def _cost(self) -> str:
        winner, next_one = self.winner, min(self.others, key=lambda item: item["cost"], default=None)
        if winner is None or next_one is None:
            return f"{self.name} had the lowest cost"
        lead = f"cheaper than {self.name_of(next_one)} by {next_one['cost'] - winner['cost']:,.0f}"
        longest = max(self.others, key=_held_by)
        if _held_by(longest) > _held_by(winner):
            return f"{self.name} won by load: {self._against_longer(winner, longest)} ({lead})"
        waits = _waiting(winner) - _waiting(next_one)
        more = _held_by(winner) - _held_by(next_one)
        if more > 0:
            text = f"{self.name} won by its prefix: it holds {self._of_prompt(winner)}, {more:,} more than "
            text += self.name_of(next_one)
            return f"{text}{f', which outweighs its longer queue (by {waits:,.0f})' if waits > 0 else ''} ({lead})"
        held = f"both hold {self._of_prompt(winner)}" if _held_by(winner) else "neither holds any of the prompt"
        if waits < 0:
            return f"{self.name} won by load: {held}, and its queue is shorter by {-waits:,.0f} ({lead})"
        next_name = self.name_of(next_one)
        return f"{self.name} won by the worth of its match: {held}, but {self._worth(next_one)} at {next_name} ({lead})"

    def _against_longer(self, winner: View, longest: View) -> str:
        more = _held_by(longest) - _held_by(winner)
        text = f"{self.name_of(longest)} holds {more:,} more of the prompt"
        waits = _waiting(longest) - _waiting(winner)
        if waits > 0:
            return f"{text}, but its queue is longer by {waits:,.0f}"
        return f"{text}, but {self._worth(longest)} there"

    def _worth(self, candidate: View) -> str:
        """Why a match counts for less than its length."""
        if candidate.get("trust") == "approximate":
            return "matches that are only remembered count for less"
        return "what has to be loaded from slower memory counts for less"

    def _prefix(self) -> str:
        if self.winner is None:
            return f"{self.name} holds the longest prefix"
        text = f"{self.name} holds the longest prefix, {self._of_prompt(self.winner)}"
        return text if self.decision.get("policy") == "longest-prefix" else f"costs were equal, and {text}"

    def _owner(self) -> str:
        text = f"{self.name} owns the prompt's first blocks on the hash ring"
        if self.decision.get("policy") == "consistent-hash":
            owner = self.decision.get("owner")
            if owner is not None and owner != self.decision["winner"]:
                return f"{self.name} is the next on the hash ring, since {owner}, the owner, has its share of the load"
            return text
        return f"costs were equal ({self._equally_held()}), and {text}"

    def _least_loaded(self) -> str:
        if self.decision.get("policy") in ("least-loaded", "power-of-two"):
            return f"{self.name} was the least loaded{self._with_queue()}"
        return f"costs were equal ({self._equally_held()}), and {self.name} was the least loaded{self._with_queue()}"

    def _random(self) -> str:
        if self.decision.get("policy") == "random":
            return f"{self.name} was drawn at random"
        return f"nothing told them apart ({self._equally_held()}), and {self.name} was drawn at random"

    # -- what is besides ----------------------------------------------------------------------------------------------

    def after(self) -> str:
        """What the reader should know of the match."""
        parts = []
        winner = self.winner
        if winner is not None:
            coming = winner["expected_tokens"] - winner["matched_tokens"]
            if coming > 0:
                parts.append(f"{coming:,} of its tokens are still being computed there by requests in flight")
            below = winner.get("cpu_tokens", 0) + winner.get("disk_tokens", 0)
            if below:
                parts.append(f"{below:,} have to be loaded from slower memory")
        if self.decision.get("trust") == "approximate" and self.decision.get("matched_tokens"):
            parts.append("its match is what the router remembers, not what the engine reports")
        away = self.decision.get("unavailable_tokens") or 0
        if self.removed and self.decision["reason"] != "only":
            parts.append(_removed(self.removed))
        if away > self.decision.get("available_tokens", 0):
            parts.append(f"one that could not take it holds {away:,} tokens")
        return "".join(f"; {part}" for part in parts)

    def _of_prompt(self, candidate: View) -> str:
        return f"{_held_by(candidate):,} of {self.decision['prompt_tokens']:,} tokens"

    def _held(self) -> str:
        if self.winner is None or not _held_by(self.winner):
            return ""
        return f"; it holds {self._of_prompt(self.winner)}"

    def _equally_held(self) -> str:
        held = 0 if self.winner is None else _held_by(self.winner)
        return f"{held:,} tokens held" if held else "none of the prompt is held"

    def _with_queue(self) -> str:
        return "" if self.winner is None else f", with {self.winner['backlog_tokens']:,.0f} tokens waiting"


def _held_by(candidate: View) -> int:
    return int(candidate["expected_tokens"])


def _waiting(candidate: View) -> float:
    """What of its cost is not this prompt's own computing."""
    terms = candidate.get("terms", {})
    return float(sum(value for name, value in terms.items() if name != "recompute"))


def _removed(removed: Mapping[str, Any]) -> str:
    if set(removed) == {"replicas"} and isinstance(removed["replicas"], int):  # a compact Decision of a large fleet
        return f"{removed['replicas']:,} replicas could not take it"
    if len(removed) > MAX_NAMED:
        counts: dict[str, int] = {}
        for why in removed.values():
            counts[why] = counts.get(why, 0) + 1
        by_reason = ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))
        return f"{len(removed):,} replicas could not take it ({by_reason})"
    return ", ".join(f"{name} {REMOVED.get(why, f'was removed ({why})')}" for name, why in removed.items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MAX_NAMED else f"{len(names)} replicas"


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
