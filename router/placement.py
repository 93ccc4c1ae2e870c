"""Placement: match, filter, score, pick and reserve, in one synchronous call.

Nothing is awaited between looking and reserving, so two requests can't both see a replica as idle. Time and chance are
parameters: the simulator runs this very code in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from router.config_placement import PlacementConfig, WeightsConfig
from router.errors import NoReplicaError, NoRoomError
from router.fleet.facts import Trust
from router.fleet.fleet import Fleet
from router.fleet.ledger import Reservation
from router.fleet.replica import Replica, Unit
from router.fleet.vouching import Record, Vouching, VouchState
from router.index.announced import AnnouncedBlocks
from router.index.approximate import ApproximateMemory, memory_slot
from router.index.expected import ExpectedBlocks, ExpectedPrompt
from router.index.hot_prefixes import HotPrefixes
from router.index.prefix_index import PrefixIndex
from router.index.shortfalls import Shortfalls
from router.proving import Evidence, Proving
from router.request.prompt import Kind, Prompt
from router.scheduling.affinity import REASON, Affinity
from router.scheduling.decision import Decision, Outcome
from router.scheduling.pickers import Choice
from router.scheduling.policies import Pick, Profile
from router.scheduling.shadow import Shadow
from router.scheduling.wishes import NO_WISHES, Wishes
from router.survey import Survey, Surveyor

SUCCESS = range(200, 300)


@dataclass(slots=True, eq=False)
class Placement:
    """A request's place, until it ends. Give it back with `Placer.finish`."""

    request_id: str
    prompt: Prompt
    decision: Decision
    replica: Replica
    unit: Unit
    chain: Sequence[int]
    reservation: Reservation
    expected: ExpectedPrompt | None
    doubted: bool = False
    """Predictions of its kind were not believed at this unit."""
    record: Record | None = None
    """What is known of predictions of its kind there; None where none is made from reports."""
    evidence: Evidence | None = None
    is_probe: bool = False
    """It shows whether a replica that was ejected is back."""
    placed_s: float = 0.0
    first_token_seen: bool = False
    finished: bool = False


class Placer:
    """Chooses and reserves.

    Args:
        rng: The only source of chance.
        unix_time: Wall clock for Decisions; nothing is measured with it.
        proving: Holds predictions against what units announce; None where nobody tells of announcements.
        hot: Told of prompts, where warming is configured.
        on_shadow: Told of each request that was scored under other weights too; see `Shadow`.
        trace: Makes what is kept of a prompt with its Decision, from its chain and block size; None: nothing is kept.
    """

    def __init__(
        self,
        fleet: Fleet,
        index: PrefixIndex,
        expected: ExpectedBlocks,
        approximate: ApproximateMemory,
        config: PlacementConfig,
        rng: Random,
        unix_time: Callable[[], float],
        proving: Proving | None = None,
        trace: Callable[[Prompt, Sequence[int], int], dict[str, Any] | None] | None = None,
        on_shadow: Callable[[bool, int, int], None] | None = None,
        hot: HotPrefixes | None = None,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self.proving = proving or Proving(index, AnnouncedBlocks(), Vouching())
        self.shortfalls = Shortfalls()
        """Blocks that engines did not find, to be told to their agents."""
        self._expected = expected
        self._approximate = approximate
        self._config = config
        self._rng = rng
        self._unix_time = unix_time
        self._trace = trace
        self._profile = Profile(config)
        self._others: dict[str, Profile] = {}
        self._affinity = Affinity(config.affinity) if config.affinity is not None else None
        self._on_shadow = on_shadow
        self._hot = hot
        self.shadow = self._shadow(config)
        """Scores real requests under other weights; None where none are configured."""
        self._surveyor = Surveyor(fleet, index, expected, config, self.proving.vouching)

    def configure(
        self, config: PlacementConfig, trace: Callable[[Prompt, Sequence[int], int], dict[str, Any] | None] | None
    ) -> None:
        """Choose by other rules from now on."""
        if config.policy != self._config.policy:
            self._profile = Profile(config)
        if config.shadow != self._config.shadow or config.tie_tokens != self._config.tie_tokens:
            # What other weights would have done says nothing of these.
            self.shadow = self._shadow(config)
        self._affinity = Affinity(config.affinity, self._affinity) if config.affinity is not None else None
        self._others.clear()
        self._profile.configure(config)
        self._config = self._surveyor.config = config
        self._trace = trace

    def place(
        self,
        prompt: Prompt,
        request_id: str,
        now_s: float,
        excluded: Collection[str] = (),
        wishes: Wishes = NO_WISHES,
    ) -> Placement:
        """Choose a unit for a prompt and count the prompt there.

        Args:
            now_s: The clock that all times here are of.
            excluded: Replicas that were tried for this request.
            wishes: Another policy, a session.

        Raises:
            ModelNotFoundError: No replica serves the model.
            NoReplicaError: Those that do can't take a request now.
        """
        profile = self._profile if wishes.policy is None else self._other(wishes.policy)
        shadow = self.shadow if wishes.policy is None and not wishes.own else None
        self._expected.settle(now_s)
        self.proving.settle(now_s)
        weighed = self._surveyor.weigh(prompt, now_s, profile, self._rng) if shadow is None and not excluded else None
        if weighed is not None:
            survey, pick = weighed
        else:
            survey, pick = self._surveyed(prompt, request_id, now_s, excluded, profile, shadow)
        if profile.remembers:
            profile.took(pick)
        if self._affinity is not None and wishes.session is not None:
            pick = self._keep_session(self._affinity, wishes.session, survey, pick, now_s)
            self._affinity.went(wishes.session, pick.winner, survey.removed, now_s)
        place = pick.place
        unit, chain, held_blocks = survey.units[place], survey.chains[place], survey.held_blocks[place]
        is_probe = unit.replica.ejected_until_s is not None and self._fleet.probed(unit.replica, now_s)
        doubted = unit.unit_id in survey.doubted
        expected = record = evidence = None
        if chain and unit.trust is not Trust.NONE:
            expected = self._expected.expect(unit.slot, chain, held_blocks)
            record = None if wishes.own else self.proving.record(unit, prompt)
        if record is not None:
            announced_blocks = self._index.leading(unit.slot, chain) if doubted else held_blocks
            evidence = self.proving.begin(record, unit, prompt, chain, announced_blocks)
        if self._hot is not None and self._config.warming.is_on and chain and not wishes.own:
            self._saw(self._hot, prompt, unit, chain, now_s)
        uncached = max(0, prompt.tokens - pick.expected_tokens)
        known = prompt.reason is None and survey.candidates.trusts[place] in (Trust.EXACT, Trust.MAPPED)
        reservation = unit.in_flight.reserve(
            uncached, now_s, context_tokens=prompt.tokens, observable=prompt.stream, teaches=known
        )
        decision = self._explain(prompt, request_id, survey, pick, profile)
        decision.retries = list(excluded)
        if self._trace is not None and unit.scheme is not None:
            decision.trace = self._trace(prompt, chain, unit.scheme.block_size)
        return Placement(
            request_id,
            prompt,
            decision,
            unit.replica,
            unit,
            chain,
            reservation,
            expected,
            doubted,
            record,
            evidence,
            is_probe,
            now_s,
        )

    def explain(
        self,
        prompt: Prompt,
        now_s: float,
        request_id: str = "",
        wishes: Wishes = NO_WISHES,
        weights: WeightsConfig | None = None,
    ) -> Decision:
        """Return the decision that a prompt would get now; nothing is reserved.

        Args:
            weights: Others than the configured ones.

        Raises:
            ModelNotFoundError, NoReplicaError: As for `place`.
        """
        profile = self._profile if wishes.policy is None else self._other(wishes.policy)
        if weights is not None:
            profile = Profile(profile.config.model_copy(update={"weights": weights}))
        self._surveyor.config = profile.config
        self._expected.settle(now_s)
        self.proving.settle(now_s)
        try:
            survey = self._survey(prompt, now_s, ())
        finally:
            self._surveyor.config = self._config
        pick = profile.decide(survey.candidates, self._choice(survey))
        if self._affinity is not None and wishes.session is not None:
            pick = self._keep_session(self._affinity, wishes.session, survey, pick, now_s)
        return self._explain(prompt, request_id, survey, pick, profile)

    def first_token(self, placement: Placement, now_s: float) -> None:
        """The answer began: the prompt is computed, and the engine's events are on their way."""
        if placement.first_token_seen or placement.finished:
            return
        placement.first_token_seen = True
        placement.unit.in_flight.first_token(placement.reservation, now_s)
        self._learned(placement, now_s)

    def finish(self, placement: Placement, now_s: float, outcome: Outcome) -> None:
        """The request ended, however it did. Only the first call counts."""
        if placement.finished:
            return
        placement.finished = True
        placement.decision.outcome = outcome
        placement.unit.in_flight.release(placement.reservation, now_s)
        if placement.is_probe:
            self._fleet.probe_ended(placement.replica, now_s)
        if not placement.first_token_seen:
            if outcome.status in SUCCESS and outcome.error is None and not outcome.aborted:
                self._learned(placement, now_s)
            elif placement.expected is not None:
                self._expected.end(placement.expected)
        if placement.evidence is not None:
            self.proving.ended(placement.evidence, outcome)
        if placement.record is not None and not placement.doubted and outcome.cached_tokens is not None:
            placement.record.delivered(placement.decision.matched_tokens, outcome.cached_tokens)
            self._look_for_shortfall(placement, placement.record, outcome.cached_tokens)

    def _look_for_shortfall(self, placement: Placement, record: Record, cached_tokens: int) -> None:
        """Fewer tokens came from the cache than the unit announced: what is still believed of them is to be doubted.

        Only where predictions of the kind are known to hold: otherwise the prompt was another one for the engine.
        """
        unit, outcome = placement.unit, placement.decision.outcome
        if record.state is not VouchState.VOUCHED or unit.scheme is None or self._fleet.unit(unit.unit_id) is not unit:
            return
        if outcome is None or outcome.status not in SUCCESS or outcome.error is not None:
            return
        size = unit.scheme.block_size
        missing = placement.chain[cached_tokens // size : placement.decision.matched_tokens // size]
        believed = [block for block in missing if self._index.holds(unit.slot, block)]
        self.shortfalls.add(unit.unit_id, believed, placement.placed_s)

    def _learned(self, placement: Placement, now_s: float) -> None:
        unit = placement.unit
        if placement.expected is not None:
            self._expected.end_at(placement.expected, now_s + self._config.event_lag_s)
        if placement.evidence is not None:
            self.proving.computed(placement.evidence, now_s)
        if self._fleet.unit(unit.unit_id) is not unit:
            return
        if unit.trust is Trust.APPROXIMATE:
            self._approximate.remember(unit.slot, placement.chain, unit.num_blocks)
            return
        self._approximate.drop(unit.slot)
        if placement.doubted:
            self._approximate.remember(memory_slot(unit.slot), placement.chain, unit.num_blocks)
        elif not self.proving.vouching.has_doubts(unit):
            self._approximate.forget(memory_slot(unit.slot))

    def _surveyed(
        self,
        prompt: Prompt,
        request_id: str,
        now_s: float,
        excluded: Collection[str],
        profile: Profile,
        shadow: Shadow | None,
    ) -> tuple[Survey, Pick]:
        """Collect the candidates and choose, step by step."""
        survey = self._survey(prompt, now_s, excluded)
        choice = self._choice(survey)
        scored = shadow.score(survey.candidates, choice) if shadow is not None else None
        pick = profile.decide(survey.candidates, choice)
        if shadow is not None and scored is not None:
            shadow.compare(scored, pick.winner, request_id)
        return survey, pick

    def _survey(self, prompt: Prompt, now_s: float, excluded: Collection[str]) -> Survey:
        survey = self._surveyor.survey(prompt, now_s, excluded)
        if not survey.candidates:
            why = ", ".join(sorted(set(survey.removed.values()))) or "the fleet is empty"
            message = f"no replica can take a request for this model now ({why}); try again"
            error = NoRoomError if "full" in survey.removed.values() else NoReplicaError
            raise error(message, retry_after_s=1)
        return survey

    def _saw(self, hot: HotPrefixes, prompt: Prompt, unit: Unit, chain: Sequence[int], now_s: float) -> None:
        """Count a prompt whose beginning token ids alone bring about, with its model and salt: no media, no guesses."""
        ids, scheme = prompt.token_ids, unit.scheme
        if ids is None or scheme is None or prompt.reason is not None or prompt.media:
            return
        if prompt.kind in (Kind.CHAT, Kind.COMPLETION):
            model = unit.replica.asked_model(prompt.model)
            hot.saw(model, prompt.salt, chain, ids, scheme.block_size, now_s)

    def _shadow(self, config: PlacementConfig) -> Shadow | None:
        return None if config.shadow is None else Shadow(config, Random(self._rng.random()), self._on_shadow)

    def _choice(self, survey: Survey) -> Choice:
        return Choice(survey.owner_key, survey.ring, self._config.tie_tokens, self._rng)

    def _other(self, policy: str) -> Profile:
        """Return another policy than the configured one, which keeps what its picker remembers."""
        if policy == self._config.policy:
            return self._profile
        profile = self._others.get(policy)
        if profile is None:
            profile = self._others[policy] = Profile(self._config.model_copy(update={"policy": policy}))
        return profile

    def _keep_session(self, affinity: Affinity, session: int, survey: Survey, pick: Pick, now_s: float) -> Pick:
        """Return the choice with the session's own replica for the winner, where that is its place."""
        candidates = pick.candidates
        own = affinity.choose(session, candidates, pick.winner, survey.ring, now_s)
        if own is pick.winner:
            return pick
        place = candidates.unit_ids.index(own.unit_id)
        return Pick.of(place, candidates, REASON, pick.price)

    def _explain(self, prompt: Prompt, request_id: str, survey: Survey, pick: Pick, profile: Profile) -> Decision:
        candidates, place, key = survey.candidates, pick.place, survey.owner_key
        return Decision(
            request_id,
            self._unix_time(),
            prompt.model,
            profile.config.policy,
            prompt.tokens,
            pick.price,
            candidates,
            survey.removed,
            candidates.unit_ids[place],
            pick.lead_tokens,
            pick.matched_tokens,
            pick.expected_tokens,
            pick.reason,
            candidates.trusts[place],
            prompt.reason,
            None if key is None else survey.ring.owner(key),
            term_names=profile.terms,
            unavailable_tokens=survey.unavailable_tokens,
        )
