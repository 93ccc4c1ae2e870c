"""The one object that the data plane tells what happened: counters, the ring of decisions, the access line."""

from __future__ import annotations

from pathlib import Path

from router.config import RouterConfig
from router.placement import Placement
from router.scheduling.decision import Decision, Outcome
from router.telemetry.access_log import AccessLog, RequestFacts
from router.telemetry.chain_samples import ChainSamples
from router.telemetry.decisions import DecisionLog
from router.telemetry.metrics import Metrics
from router.telemetry.replica_traffic import Traffic
from router.telemetry.request_trace import RequestTrace
from router.telemetry.reuse_ledger import Counted, ReuseLedger
from router.telemetry.tracing import Tracing, tracing_of

__all__ = ["Recorder", "RequestFacts"]


class Recorder:
    """Takes note of requests. Every call is synchronous and costs microseconds.

    Args:
        record: The file of a trace to write, once it begins; None: none.
    """

    def __init__(
        self, metrics: Metrics, decisions: DecisionLog, access_log: AccessLog, record: Path | None = None
    ) -> None:
        self.metrics = metrics
        self.decisions = decisions
        self.ledger = ReuseLedger()
        self.traffic = Traffic()
        self.chains = ChainSamples()
        self._access_log = access_log
        self._record = record
        self._trace: RequestTrace | None = None
        self.tracing: Tracing | None = None
        """Chooses requests whose spans are told."""

    @classmethod
    def of(cls, config: RouterConfig, metrics: Metrics) -> Recorder:
        """Return one with the logs and traces that a configuration asks for.

        Raises:
            ConfigurationError: A package for them is missing.
        """
        access_log = AccessLog(log_format=config.log.format, enabled=config.log.access)
        recorder = cls(metrics, DecisionLog(config.admin.decisions), access_log, config.record)
        recorder.tracing = tracing_of(config.tracing)
        return recorder

    def configure(self, config: RouterConfig) -> None:
        """Take over what may change while it runs."""
        self.decisions.keep(config.admin.decisions)
        self._access_log.enabled = config.log.access

    def begin(self) -> None:
        """Open what is written to.

        Raises:
            ConfigurationError: A file can't be made.
        """
        if self._record is not None:
            self._trace = RequestTrace(self._record)

    def close(self) -> None:
        """Write all that waits to be written. May block: not for the loop."""
        self._access_log.close()
        if self.tracing is not None:
            self.tracing.close()
        if self._trace is not None:
            self._trace.close()

    def accepted(self) -> None:
        """A request's head is complete. `finished` is called for it exactly once."""
        self.metrics.request_accepted()

    def prompt_read(self, seconds: float, reason: str | None) -> None:
        """The prompt was rendered and tokenised, or was not understood for `reason`."""
        self.metrics.prompt_read(seconds, reason)

    def remote_tokenized(self, result: str) -> None:
        """A replica was to tokenise the prompt; `result` as `warmroute_remote_tokenize_total` has it."""
        self.metrics.remote_tokenized(result)

    def placed(self, decision: Decision, seconds: float) -> None:
        """A replica was chosen, in `seconds`; again after a retry."""
        self.metrics.decision_made(decision.policy, seconds)
        self.decisions.add(decision)

    def retried(self, reason: str) -> None:
        """The chosen replica could not be reached; `reason` is the error's code."""
        self.metrics.request_retried(reason)

    def queue_changed(self, waiting: int) -> None:
        """So many requests wait for a replica with room now."""
        self.metrics.queue_changed(waiting)

    def queue_left(self, waited_s: float) -> None:
        """A request waits no more, for whatever reason."""
        self.metrics.queue_left(waited_s)

    def ejected(self) -> None:
        """Failures in a row took a replica out for a while."""
        self.metrics.replica_ejected()

    def finished(self, placement: Placement | None, outcome: Outcome, facts: RequestFacts) -> None:
        """A request ended. `placement` is None when it was refused before it was placed."""
        metrics = self.metrics
        decision = placement.decision if placement is not None else None
        metrics.request_ended(facts.path, facts.model, outcome.status, outcome.total_s)
        if outcome.error is not None:
            metrics.error_answered(outcome.error)
        if facts.tenant is not None:
            metrics.tenant_request_ended(facts.tenant, outcome)
        if outcome.aborted:
            metrics.client_aborted()
        good = outcome.status is not None and 200 <= outcome.status < 300
        if good and outcome.ttft_s is not None and facts.stream:
            metrics.first_token_seen(facts.model, outcome.ttft_s)
        if placement is not None:
            counted = self._count_reuse(placement, outcome, facts) if good else None
            self.traffic.ended(placement.replica.replica_id, outcome, counted, streamed=facts.stream)
        if good and placement is not None and placement.chain and placement.unit.scheme is not None:
            self.chains.offer(
                facts.model, placement.unit.scheme.block_size, placement.chain, placement.decision.prompt_tokens
            )
        if facts.trace_id is not None:
            metrics.request_traced(facts, outcome)
        self._access_log.write(decision, outcome, facts)
        if good and placement is not None and self._trace is not None:
            self._trace.write(placement, outcome)

    def _count_reuse(self, placement: Placement, outcome: Outcome, facts: RequestFacts) -> Counted:
        model = self.metrics.model_label(facts.model)
        counted = self.ledger.count(model, facts.tenant, placement, outcome)
        self.metrics.reuse_counted(facts.model, counted.prompt, counted.available, counted.captured, counted.delivered)
        return counted
