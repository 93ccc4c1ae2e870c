"""What a choice is made from: the candidates for one prompt, with how much of it each holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from router.config_placement import PlacementConfig
from router.errors import ModelNotFoundError
from router.families import Columns, Family, View, chain_of
from router.fleet.facts import Trust
from router.fleet.fleet import Fleet
from router.fleet.replica import FRESH_S, Replica, ReplicaState, Unit
from router.fleet.vouching import Vouching
from router.index.expected import ExpectedBlocks
from router.index.prefix_index import PrefixIndex
from router.kv.extra_keys import Lora
from router.kv.schemes import Scheme
from router.request.prompt import Prompt
from router.scheduling.candidates import NO_CANDIDATES, Candidates, Packed
from router.scheduling.filters import Standing, objection
from router.scheduling.policies import Pick, Profile
from router.scheduling.ring import OwnerRing
from router.weighing import are_untroubled, weigh

FIRST_SHARE = 0.2
"""Of its speed, at the beginning of a new replica's ramp."""
MAX_VIEWS = 256
"""Model names whose view is kept. Names come from clients, and replicas that do not tell what they serve take any."""


@dataclass(slots=True, eq=False)
class Survey:
    """All that a choice is made from.

    Attributes:
        ring: All units that serve the model.
        candidates: Units that may take the prompt.
        units: The candidates' units, in their order.
        chains: The prompt's chain as each candidate's engine names it.
        held_blocks: Leading blocks that each candidate holds.
        removed: Replicas that may not take it, with the reason.
        doubted: Candidates, by their units' names, whose predictions for this kind of request are not believed: what
            is remembered counts there instead of what they announced.
        unavailable_tokens: The longest match of a unit that may not take it.
        owner_key: Hash that names the prompt's first blocks; None where it was not understood.
    """

    ring: OwnerRing
    removed: dict[str, str] = field(default_factory=dict)
    candidates: Candidates = NO_CANDIDATES
    units: list[Unit] = field(default_factory=list)
    chains: list[list[int]] = field(default_factory=list)
    held_blocks: list[int] = field(default_factory=list)
    doubted: set[str] = field(default_factory=set)
    owner_key: int | None = None
    unavailable_tokens: int = 0


class Surveyor:
    """Looks at the fleet and the index for one prompt. Changes neither."""

    def __init__(
        self,
        fleet: Fleet,
        index: PrefixIndex,
        expected: ExpectedBlocks,
        config: PlacementConfig,
        vouching: Vouching,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._expected = expected
        self.config = config
        self._vouching = vouching
        self._views: dict[str | None, View] = {}
        self.weighs = True
        """Whether candidates may be weighed natively."""

    def survey(self, prompt: Prompt, now_s: float, excluded: Collection[str]) -> Survey:
        """Collect the candidates for a prompt.

        Args:
            excluded: Replicas that were tried for this request.

        Raises:
            ModelNotFoundError: No replica serves the model.
        """
        view = self._view(prompt.model)
        survey = Survey(view.ring)
        limit = self._fleet.max_in_flight
        # As nearly all are ready, not tried and not full, which no filter objects to, few are looked at closely.
        suspects = view.replicas if limit > 0 or excluded else _troubled(view.replicas)
        for replica in suspects:
            full = limit > 0 and replica.requests >= limit
            if not full and not replica.troubled and replica.replica_id not in excluded:
                continue
            why = objection(Standing(replica.state(now_s), replica.replica_id in excluded, full))
            if why is not None:
                survey.removed[replica.replica_id] = why
        if survey.removed and len(survey.removed) == len(view.replicas) and "full" not in survey.removed.values():
            self._take_any(view, survey, limit)
        for family in view.families:
            self._add_family(survey, prompt, family, now_s)
        if self.config.weights.held_share:
            survey.candidates.held_tokens = [unit.held_tokens(now_s) for unit in survey.units]
        if self.config.weights.kv_pressure_tokens:
            survey.candidates.kv_usage_shares = [
                unit.load.kv_usage if unit.load is not None and now_s - unit.load.at_s <= FRESH_S else 0.0
                for unit in survey.units
            ]
        return survey

    def weigh(self, prompt: Prompt, now_s: float, profile: Profile, rng: Random) -> tuple[Survey, Pick] | None:
        """Collect the candidates and choose as `profile` does, in one native call.

        Args:
            rng: The only source of chance.

        Returns:
            None where the rule, or the fleet now, is not as usual: then `survey` and the profile do the same.

        Raises:
            ModelNotFoundError: As `survey`.
        """
        figures, view = profile.figures, self._view(prompt.model)
        if figures is None or not self.weighs or len(view.families) != 1:
            return None
        if self._fleet.max_in_flight > 0 or self._vouching.doubts:
            return None
        if not are_untroubled(view.replicas):
            return None
        family, config = view.families[0], self.config
        columns = family.columns
        if columns is None:
            columns = family.columns = Columns(family.units, self._index)
        chain, readable, block_size = chain_of(prompt, family)
        owner_key = owner = held = expected = cpu = disk = None
        if chain:
            owner_key = chain[min(len(chain), config.owner_blocks) - 1]
            owner = view.ring.owner(owner_key)
        if readable:
            held, cpu, disk = self._index.depths(readable, columns.view)
            expected = self._expected.extended(columns.slots, readable, held)
        shares = columns.shares(config.weights.approximate_share)
        weighed = weigh(
            columns.units,
            columns.unit_ids,
            now_s,
            config.ramp_s,
            shares,
            0 if family.scheme is None else block_size,
            prompt.tokens,
            held,
            expected,
            cpu,
            disk,
            figures,
            config.tie_tokens,
            owner,
        )
        if weighed is None:
            return None
        chosen, reason, price, packed, longest = weighed
        if reason is None:
            chosen, reason = rng.choice(chosen), "random"
        place, lead_tokens = chosen
        has_held = config.weights.held_share != 0
        candidates = Candidates.weighed(
            prompt.tokens,
            columns.unit_ids,
            columns.replica_ids,
            columns.trusts,
            shares,
            Packed(packed, block_size, longest, cpu is not None, disk is not None, has_held, profile.scoring),
        )
        if held is None or expected is None:
            matched_tokens = expected_tokens = 0
            held = [0] * len(columns.units)
        else:
            matched_tokens, expected_tokens = block_size * held[place], block_size * expected[place]
        survey = Survey(
            view.ring, {}, candidates, columns.units, [chain] * len(columns.units), held, set(), owner_key, 0
        )
        return survey, Pick(place, candidates, reason, price, lead_tokens, matched_tokens, expected_tokens)

    def _take_any(self, view: View, survey: Survey, limit: int) -> None:
        """An ejection says that others are better, and so does warming. Where there are no others, it says nothing."""
        reasons = set(survey.removed.values())
        taken = ReplicaState.WARMING if ReplicaState.WARMING in reasons else ReplicaState.EJECTED
        for replica in view.replicas:
            if survey.removed[replica.replica_id] == taken:
                if limit and replica.requests >= limit:
                    survey.removed[replica.replica_id] = "full"
                else:
                    del survey.removed[replica.replica_id]

    def _view(self, model: str | None) -> View:
        view = self._views.get(model)
        if view is not None and view.fleet_version == self._fleet.version:
            return view
        replicas = [
            replica
            for replica in self._fleet.replicas.values()
            if model is None or not replica.models or model in replica.models
        ]
        if not replicas and self._fleet.replicas:
            self._views.pop(model, None)
            raise ModelNotFoundError(f"The model {str(model)[:256]!r} does not exist.", param="model")
        families: dict[tuple[Scheme | None, Lora | None], Family] = {}
        for replica in replicas:
            served = replica.models.get(model) if model is not None else None
            lora = Lora(served.name, served.root) if served is not None and served.parent is not None else None
            for unit in replica.units:
                family = families.setdefault((unit.scheme, lora), Family(unit.scheme, lora))
                family.units.append(unit)
        names = frozenset(unit.unit_id for replica in replicas for unit in replica.units)
        ring = self._ring(names, view)
        self._views.pop(model, None)
        if len(self._views) >= MAX_VIEWS:
            del self._views[next(iter(self._views))]
        self._views[model] = view = View(self._fleet.version, replicas, list(families.values()), ring)
        return view

    def _ring(self, names: frozenset[str], former: View | None) -> OwnerRing:
        """Return a ring of these names: models that the same units serve share one, since building it takes a while."""
        for view in self._views.values():
            if view.ring.names == names:
                return view.ring
        if former is None or any(
            view is not former and view.ring is former.ring and view.fleet_version == self._fleet.version
            for view in self._views.values()
        ):
            return OwnerRing(names)
        former.ring.set_names(names)
        return former.ring

    def _add_family(self, survey: Survey, prompt: Prompt, family: Family, now_s: float) -> None:
        chain, readable, block_size = chain_of(prompt, family)
        if chain and survey.owner_key is None:
            survey.owner_key = chain[min(len(chain), self.config.owner_blocks) - 1]
        columns = self._columns(survey, prompt, family, readable)
        if not columns.units:
            return
        expected: Sequence[int]
        cpu = disk = None
        held = expected = [0] * len(columns.units)
        if readable:
            held, cpu, disk = self._index.depths(readable, columns.view)
            expected = self._expected.extended(columns.slots, readable, held)
        matched_tokens = [block_size * blocks for blocks in held]
        backlog_tokens, running = _loads(columns.units, now_s)
        candidates = Candidates(
            prompt.tokens,
            columns.unit_ids,
            columns.replica_ids,
            columns.trusts,
            matched_tokens,
            matched_tokens if expected is held else [block_size * blocks for blocks in expected],
            backlog_tokens,
            self._speeds(columns.units, now_s),
            running,
            self._trust_shares(columns.trusts) if columns.some_are_approximate else None,
            None if cpu is None else [block_size * blocks for blocks in cpu],
            None if disk is None else [block_size * blocks for blocks in disk],
        )
        survey.candidates = survey.candidates + candidates if survey.candidates else candidates
        survey.units = survey.units + columns.units if survey.units else columns.units
        survey.chains += [chain] * len(columns.units)
        survey.held_blocks += held

    def _columns(self, survey: Survey, prompt: Prompt, family: Family, readable: Sequence[int]) -> Columns:
        """Return the units of a family that may take the prompt: nearly always all of them, and as they are."""
        doubted = self._doubted(prompt, family) if self._vouching.doubts else ()
        if survey.removed or doubted:
            units = [unit for unit in family.units if unit.replica.replica_id not in survey.removed]
            away = [unit for unit in family.units if unit.replica.replica_id in survey.removed]
            survey.doubted.update(unit.unit_id for unit in units if unit.unit_id in doubted)
            if away and readable and family.scheme is not None:
                held, _, _ = self._index.depths(readable, Columns(away, self._index, doubted).view)
                survey.unavailable_tokens = max(survey.unavailable_tokens, max(held) * family.scheme.block_size)
            return Columns(units, self._index, doubted)
        if family.columns is None:
            family.columns = Columns(family.units, self._index)
        return family.columns

    def _speeds(self, units: Sequence[Unit], now_s: float) -> list[float]:
        return [
            unit.in_flight.prefill_tokens_per_s
            if unit.new_since_s is None
            else unit.in_flight.prefill_tokens_per_s * self._ramp_share(unit.new_since_s, now_s)
            for unit in units
        ]

    def _ramp_share(self, since_s: float, now_s: float) -> float:
        """Return as how fast a replica counts that joined then: its caches are empty, and its first steps are slow."""
        ramp_s = self.config.ramp_s
        return 1.0 if now_s - since_s >= ramp_s else FIRST_SHARE + (1 - FIRST_SHARE) * (now_s - since_s) / ramp_s

    def _doubted(self, prompt: Prompt, family: Family) -> set[str]:
        """Return the units whose reports are not believed for this kind of request, by name."""
        return {
            unit.unit_id
            for unit in family.units
            if unit.trust in (Trust.EXACT, Trust.MAPPED)
            and self._vouching.is_distrusted(unit, unit.replica.asked_model(prompt.model), prompt.kind)
        }

    def _trust_shares(self, trusts: Sequence[Trust]) -> list[float]:
        share = self.config.weights.approximate_share
        return [share if trust is Trust.APPROXIMATE else 1.0 for trust in trusts]


def _troubled(replicas: Sequence[Replica]) -> list[Replica]:
    """Return those whose state can be any but READY (`Replica.troubled`, without a call for each)."""
    return [
        r
        for r in replicas
        if r.draining or r.down_reason is not None or r.ejected_until_s is not None or r.held_until_s is not None
    ]


def _loads(units: Sequence[Unit], now_s: float) -> tuple[list[float], list[int]]:
    """Return prompt tokens that are not computed yet at each unit, and requests: those of all known routers, and those
    that the engine has from elsewhere."""
    backlog_tokens, running = [], []
    for unit in units:
        in_flight = unit.in_flight
        backlog_tokens.append(in_flight.backlog_tokens(now_s) + unit.sibling_tokens + unit.peer_tokens)
        requests = in_flight.requests + unit.sibling_requests + unit.peer_requests
        if unit.foreign_requests and unit.load is not None and now_s - unit.load.at_s <= FRESH_S:
            requests += unit.foreign_requests
        running.append(requests)
    return backlog_tokens, running
