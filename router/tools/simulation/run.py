"""One policy over one trace: engines, the rule, and who comes and goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from router.tools.simulation.batched import BatchedEngine
from router.tools.simulation.engine import Engine, EngineShape, Listener
from router.tools.simulation.requests import Job, Session
from router.tools.simulation.rule import Rule
from router.tools.simulation.serial import SerialEngine
from router.tools.simulation.timeline import ASK, Timeline

EngineMaker = Callable[[int, EngineShape, Timeline, Listener], Engine]
ENGINES: dict[str, EngineMaker] = {"serial": SerialEngine, "batched": BatchedEngine}
"""By the name that `--engine` takes."""


@dataclass(frozen=True, slots=True)
class Change:
    """The fleet changes.

    Attributes:
        at_s: When.
        replica: Which one is lost (with everything in it), or joins.
        joins: Whether it joins.
    """

    at_s: float
    replica: int
    joins: bool


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What the engines are.

    Attributes:
        engine: A name in `ENGINES`.
        shapes: One a replica that is there from the start; a replica that joins later has that of its number, counted
            around.
        changes: Who is lost or joins later.
    """

    engine: str
    shapes: Sequence[EngineShape]
    changes: Sequence[Change] = ()


class Run:
    """Runs all sessions to their end. It listens to the engines.

    Attributes:
        jobs: Every request, in the order of arrival.
        engines: Those that are there now, by number.
        computed_tokens: Of each replica that ever was, what it computed.
        queue_s: Mean seconds of prefill before a replica, as each request found it; their sum.
    """

    def __init__(self, plan: FleetPlan, timeline: Timeline, rule: Rule, on_job: Callable[[], None] | None = None):
        self.jobs: list[Job] = []
        self.engines: dict[int, Engine] = {}
        self.computed_tokens: dict[int, int] = {}
        self.queue_s = 0.0
        self._plan = plan
        self._timeline = timeline
        self._rule = rule
        self._on_job = on_job
        self._homeless: list[Job] = []

    def run(self, sessions: Iterable[Session]) -> None:
        """Carry out everything."""
        for replica in range(len(self._plan.shapes)):
            self._join(replica)
        for change in self._plan.changes:
            self._timeline.at(change.at_s, self._join if change.joins else self._lose, change.replica, who=ASK)
        for session in sessions:
            self._timeline.at(session.start_s, self._arrive, session, 0, who=ASK)
        self._timeline.run()
        for replica, engine in self.engines.items():
            self.computed_tokens[replica] = self.computed_tokens.get(replica, 0) + engine.computed_tokens

    def stored(self, replica: int, blocks: Sequence[int]) -> None:
        """See `Listener`."""
        self._rule.stored(replica, blocks)

    def removed(self, replica: int, blocks: Iterable[int]) -> None:
        """See `Listener`."""
        self._rule.removed(replica, blocks)

    def first_token(self, job: Job) -> None:
        """See `Listener`."""
        if job.first_token_s is None:
            job.first_token_s = self._timeline.now_s
        self._rule.first_token(job)

    def finished(self, job: Job) -> None:
        """See `Listener`."""
        job.finished_s = self._timeline.now_s
        self._rule.finished(job)
        session, following = job.session, job.index + 1
        if following < len(session.turns):
            when_s = self._timeline.now_s + session.turns[following].think_s
            self._timeline.at(when_s, self._arrive, session, following, who=ASK)

    def _arrive(self, session: Session, index: int) -> None:
        job = Job(len(self.jobs), session, index, self._timeline.now_s)
        self.jobs.append(job)
        if self._on_job is not None:
            self._on_job()
        if self.engines:
            engines = self.engines.values()
            waits_s = (engine.remaining_tokens() / engine.shape.prefill_tokens_per_s for engine in engines)
            self.queue_s += sum(waits_s) / len(engines)
        self._place(job)

    def _place(self, job: Job) -> None:
        if not self.engines:
            self._homeless.append(job)
            return
        job.replica = self._rule.place(job)
        job.tries += 1
        self.engines[job.replica].submit(job)

    def _join(self, replica: int) -> None:
        shape = self._plan.shapes[replica % len(self._plan.shapes)]
        engine = ENGINES[self._plan.engine](replica, shape, self._timeline, self)
        self.engines[replica] = engine
        self._rule.joined(replica, engine)
        homeless, self._homeless = self._homeless, []
        for job in homeless:
            self._place(job)

    def _lose(self, replica: int) -> None:
        engine = self.engines.pop(replica)
        self.computed_tokens[replica] = self.computed_tokens.get(replica, 0) + engine.computed_tokens
        left = engine.stop()
        for job in left:
            self._rule.lost(job)
        self._rule.left(replica)
        for job in left:
            # Also where the answer had begun: then it is the client that asks again.
            job.cached_tokens = None
            self._place(job)
