"""Leases as read from Redis -> the replicas they tell of. No I/O: the clock and the bytes are parameters.

Whoever can write a lease can receive prompts. So a lease is believed when its signature holds (where a secret is set),
its address is allowed, and no newer life of the same replica or address says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.feeds.membership import FAILED_PROBES_DOWN
from router.fleet.facts import ReplicaFacts, ServedModel, Trust, UnitFacts
from router.kv.addresses import AllowedAddresses, normalised_url
from router.kv.registration import Registration, RegistrationError, decode
from router.kv.schemes import HashAlgorithm, Scheme
from router.telemetry.metrics import Metrics

LOG = logging.getLogger("warmroute.feeds.redis")
MAX_REFUSALS_KEPT = 1_000
AGENT_MISSING = "its agent is missing"


@dataclass(slots=True, eq=False)
class RegisteredUnit:
    """A unit whose lease was believed.

    Attributes:
        registration: The lease as it was last read.
        seen_s: When the lease was last there.
        lapsed: Its agent is missing for so long that its blocks can't be known.
    """

    registration: Registration
    seen_s: float
    lapsed: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """A replica that agents told of."""

    replica_id: str
    url: str
    units: dict[str, RegisteredUnit] = field(default_factory=dict)
    failed_probes: int = 0
    reached: bool = False
    """Whether its engine ever passed a probe of ours."""
    goodbyes: dict[str, int] = field(default_factory=dict)
    """Units that said goodbye while too many did: unit id -> epoch. They leave once the engine fails its probes."""

    @property
    def engine_failed(self) -> bool:
        """Whether enough probes in a row failed to call the engine dead."""
        return self.failed_probes >= FAILED_PROBES_DOWN

    @property
    def failure(self) -> str:
        """What keeps requests away while its engine fails."""
        if self.reached:
            return "fails its health probes"
        return f"can't be reached at {self.url}; check --advertise of its agent"

    @property
    def seen_s(self) -> float:
        """When any of its leases was last there."""
        return max((unit.seen_s for unit in self.units.values()), default=0.0)


class Roster:
    """Members by id.

    Args:
        secret: `registration.secret`.
        allow: `registration.allow`.
        block_sizes: Tokens a block by model, where an engine does not say.
    """

    def __init__(
        self, secret: bytes | None, allow: AllowedAddresses, block_sizes: Mapping[str, int], metrics: Metrics
    ) -> None:
        self.members: dict[str, Member] = {}
        self._secret = secret
        self._allow = allow
        self._block_sizes = block_sizes
        self._metrics = metrics
        self._known: dict[str, tuple[bytes, Registration, str]] = {}
        self._refused: dict[str, str] = {}
        self._departed: dict[str, int] = {}

    def read(self, leases: Mapping[str, bytes | None], now_s: float) -> set[str]:
        """Take a round of leases.

        Returns:
            Ids of members that are new or whose facts may have changed.
        """
        believed: list[tuple[Registration, str]] = []
        for unit, data in leases.items():
            if data is not None:
                known = self._known.get(unit)
                if known is None or known[0] != data:
                    known = self._believe(unit, data)
                if known is not None and known[1].epoch > self._departed.get(unit, -1):
                    believed.append(known[1:])
        for unit in [unit for unit in self._known if leases.get(unit) is None]:
            del self._known[unit]  # back again, it is read anew
        for unit in [unit for unit in self._departed if leases.get(unit) is None]:
            del self._departed[unit]
        # Two pods may bear one name during a rollout, and an address may pass on: the newest life holds.
        believed.sort(key=lambda item: (item[0].epoch, item[0].started))
        by_replica = {item[0].replica_id: item[1] for item in believed}
        by_url = {item[1]: item[0].replica_id for item in believed}
        for member in list(self.members.values()):
            if by_url.get(member.url, member.replica_id) != member.replica_id:
                del self.members[member.replica_id]
        changed: set[str] = set()
        for registration, url in believed:
            if by_replica[registration.replica_id] == url and by_url[url] == registration.replica_id:
                changed |= self._take(registration, url, now_s)
            else:
                self._refuse(registration.unit, "identity", "a newer lease bears its name or its address")
        return changed

    def depart(self, unit_id: str, epoch: int) -> None:
        """A unit said goodbye: until a newer life of it begins, its lease does not count."""
        self._departed[unit_id] = epoch

    def member_of(self, unit_id: str) -> Member | None:
        """Return the member that a unit belongs to."""
        return next((member for member in self.members.values() if unit_id in member.units), None)

    def facts(self, member: Member) -> ReplicaFacts:
        """Return what the fleet is to know of a member."""
        units = sorted(member.units.values(), key=lambda unit: unit.registration.rank)
        first = units[0].registration
        models = tuple(ServedModel(m.name, m.root, m.parent, m.max_model_len) for m in first.models)
        return ReplicaFacts(
            member.replica_id,
            member.url,
            "redis",
            models,
            tuple(self._unit_facts(unit) for unit in units),
            draining=any(unit.registration.state == "draining" for unit in units),
            engine=f"{first.engine.name} {first.engine.version}".strip(),
        )

    def _unit_facts(self, unit: RegisteredUnit) -> UnitFacts:
        registration = unit.registration
        trust, reason = Trust(registration.trust), registration.reason
        block_size = registration.block_size or self._configured_block_size(registration)
        scheme = Scheme(HashAlgorithm.SHA256_CBOR, block_size)
        if trust in (Trust.EXACT, Trust.MAPPED):
            told = _scheme(registration)
            if told is None:
                trust, reason = Trust.APPROXIMATE, "its hash scheme can't be computed"
            elif unit.lapsed:
                trust, reason = Trust.APPROXIMATE, AGENT_MISSING
                scheme = told  # the blocks known until now stay of use
            else:
                scheme = told
        strides = strides_of(registration.group_sizes or {}, scheme.block_size)
        blocks, whole = registration.num_blocks, registration.whole is True
        tails = tails_of(registration.group_tails or {}, scheme.block_size)
        return UnitFacts(registration.unit, registration.rank, scheme, trust, blocks, reason, whole, strides, tails)

    def _configured_block_size(self, registration: Registration) -> int:
        sizes = (self._block_sizes.get(model.name) for model in registration.models)
        return next((size for size in sizes if size is not None), 16)

    def _believe(self, unit: str, data: bytes) -> tuple[bytes, Registration, str] | None:
        try:
            registration = decode(data, self._secret, unit)
        except RegistrationError as error:
            text = str(error)
            self._refuse(unit, "signature" if "sign" in text else "malformed", text)
            return None
        try:
            url = normalised_url(registration.url)
        except ValueError as error:
            self._refuse(unit, "address", str(error))
            return None
        if not self._allow.allows(url):
            self._refuse(unit, "address", f"{url} is not in registration.allow")
            return None
        self._refused.pop(unit, None)
        known = self._known[unit] = (data, registration, url)
        return known

    def _take(self, registration: Registration, url: str, now_s: float) -> set[str]:
        member = self.members.get(registration.replica_id)
        if member is None or member.url != url:
            member = self.members[registration.replica_id] = Member(registration.replica_id, url)
        unit = member.units.get(registration.unit)
        if unit is None:
            member.units[registration.unit] = RegisteredUnit(registration, now_s)
            return {member.replica_id}
        unit.seen_s = now_s
        if registration == unit.registration:
            return set()
        unit.registration = registration
        return {member.replica_id}

    def _refuse(self, unit: str, reason: str, detail: str) -> None:
        if self._refused.get(unit) == detail:
            return
        if len(self._refused) >= MAX_REFUSALS_KEPT:
            self._refused.clear()
        self._refused[unit] = detail
        self._metrics.lease_refused(reason)
        LOG.warning("lease refused: %s", detail, extra={"unit": unit, "reason": reason})


def _scheme(registration: Registration) -> Scheme | None:
    if registration.block_size < 1:
        return None
    try:
        scheme = Scheme(HashAlgorithm(registration.algorithm), registration.block_size, registration.seed)
    except ValueError:
        return None
    return scheme if scheme.root_is_known else None


def strides_of(group_sizes: Mapping[int, int], unit_tokens: int) -> tuple[tuple[int, int], ...]:
    """Return by cache group how many hash units make one of its blocks, where that is more than one.

    A size that is no multiple of the unit is left out: nothing of such a group can be found by its hashes.
    """
    larger = sorted((group, size) for group, size in group_sizes.items() if size > unit_tokens)
    return tuple((group, size // unit_tokens) for group, size in larger if size % unit_tokens == 0)


def tails_of(group_tails: Mapping[int, tuple[int, int]], unit_tokens: int) -> tuple[tuple[int, int, int], ...]:
    """Return the cache groups that keep ends alone: group, hash units that make one of its blocks, blocks of an end.

    A size that is no multiple of the unit is left out, as in `strides_of`.
    """
    return tuple(
        (group, size // unit_tokens, -(-tokens // size))
        for group, (tokens, size) in sorted(group_tails.items())
        if tokens and size and size % unit_tokens == 0
    )
