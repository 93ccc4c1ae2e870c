"""What each replica did with the requests that this router sent there: ends, TTFT, reuse."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from router.scheduling.decision import Outcome
from router.telemetry.instruments import Distribution
from router.telemetry.reuse_ledger import Counted
from router.telemetry.table import TTFT_SECONDS

MAX_REPLICAS = 8_192


@dataclass(slots=True, eq=False)
class ReplicaTraffic:
    """Figures of one replica since it joined.

    Attributes:
        good, failed: Requests that ended with 2xx, and all others that it had (without those whose client left).
        aborted: Requests whose client left.
        prompt_tokens: Of served requests.
        captured_tokens, delivered_tokens, unobserved_tokens: As in the reuse ledger.
        observed_prompt_tokens: Prompt tokens of those whose engine reported what it read from its cache.
    """

    good: int = 0
    failed: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    observed_prompt_tokens: int = 0
    captured_tokens: int = 0
    delivered_tokens: int = 0
    unobserved_tokens: int = 0
    ttft_s: Distribution = field(default_factory=lambda: Distribution(TTFT_SECONDS))


class Traffic:
    """The figures of all replicas, by id."""

    def __init__(self) -> None:
        self.replicas: dict[str, ReplicaTraffic] = {}

    def ended(self, replica_id: str, outcome: Outcome, counted: Counted | None, *, streamed: bool) -> None:
        """A request ended there; `counted` as the ledger counted it, None where it was not served."""
        found = self.replicas.get(replica_id)
        if found is None:
            if len(self.replicas) >= MAX_REPLICAS:
                return
            found = self.replicas[replica_id] = ReplicaTraffic()
        if counted is None:
            if outcome.aborted:
                found.aborted += 1
            else:
                found.failed += 1
            return
        found.good += 1
        found.prompt_tokens += counted.prompt
        found.captured_tokens += counted.captured
        if counted.delivered is None:
            found.unobserved_tokens += counted.captured
        else:
            found.observed_prompt_tokens += counted.prompt
            found.delivered_tokens += counted.delivered
        if streamed and outcome.ttft_s is not None:
            found.ttft_s.observe(outcome.ttft_s)

    def keep(self, replica_ids: Collection[str]) -> None:
        """Forget the figures of all other replicas."""
        for gone in [name for name in self.replicas if name not in replica_ids]:
            del self.replicas[gone]
