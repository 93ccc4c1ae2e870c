"""Units whose blocks of a model bear the same names: what of them stays the same from prompt to prompt."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from router.fleet.facts import Trust
from router.fleet.replica import Replica, Unit
from router.index.approximate import memory_slot
from router.index.prefix_index import PrefixIndex
from router.kv.extra_keys import Lora
from router.kv.hashes import max_hit_tokens
from router.kv.schemes import Scheme
from router.request.prompt import Prompt
from router.scheduling.ring import OwnerRing

NO_SLOT = -(1 << 62)
"""A slot of the index that nobody has: engines without a prefix cache hold nothing."""


class Columns:
    """What of some units stays the same from prompt to prompt, a list for each figure."""

    __slots__ = (
        "_shares",
        "_shares_of",
        "replica_ids",
        "slots",
        "some_are_approximate",
        "trusts",
        "unit_ids",
        "units",
        "view",
    )

    def __init__(self, units: list[Unit], index: PrefixIndex, doubted: Collection[str] = ()) -> None:
        self.units = units
        self.unit_ids = [unit.unit_id for unit in units]
        self.replica_ids = [unit.replica.replica_id for unit in units]
        self.trusts = [Trust.APPROXIMATE if unit.unit_id in doubted else unit.trust for unit in units]
        self.some_are_approximate = Trust.APPROXIMATE in self.trusts
        self.slots = array("i", [unit.slot for unit in units])
        """As the engines report: what is expected there is counted under these, doubted or not."""
        self.view = index.view([_slot_read(unit, unit.unit_id in doubted) for unit in units])
        self._shares = array("d")
        self._shares_of = -1.0

    def shares(self, approximate_share: float) -> array[float] | None:
        """Return how much of a match counts at each; None where all of it does."""
        if not self.some_are_approximate:
            return None
        if approximate_share != self._shares_of:
            shares = [approximate_share if trust is Trust.APPROXIMATE else 1.0 for trust in self.trusts]
            self._shares, self._shares_of = array("d", shares), approximate_share
        return self._shares


@dataclass(slots=True)
class Family:
    """Units whose blocks of one model bear the same names."""

    scheme: Scheme | None
    lora: Lora | None
    units: list[Unit] = field(default_factory=list)
    columns: Columns | None = None


@dataclass(slots=True)
class View:
    """What of the fleet matters for one model name, kept while the fleet does not change."""

    fleet_version: int
    replicas: list[Replica]
    families: list[Family]
    ring: OwnerRing


def chain_of(prompt: Prompt, family: Family) -> tuple[list[int], Sequence[int], int]:
    """Return a prompt's chain, what of it the engine would read from its cache, and the block size in tokens."""
    if family.scheme is None:
        return [], (), 1
    block_size = family.scheme.block_size
    chain = prompt.chain(family.scheme, family.lora)
    if not chain or not prompt.reads_cache:
        return chain, (), block_size
    most = max_hit_tokens(prompt.tokens, block_size) // block_size
    return chain, chain if most >= len(chain) else chain[:most], block_size


def _slot_read(unit: Unit, doubted: bool) -> int:
    """Return the slot of the index that tells what a unit holds."""
    if unit.trust is Trust.NONE:
        return NO_SLOT
    return memory_slot(unit.slot) if doubted else unit.slot
