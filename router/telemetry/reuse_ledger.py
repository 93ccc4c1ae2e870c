"""The reuse ledger: where each prompt token went, by model and tenant; the sums agree to the token.

    prompt = delivered + unobserved + lost, for every reason of `LOSSES`
    captured + unpredicted = delivered + unobserved + lost by `stale` and `mismatch`

A prompt is a line of tokens with marks on it: as far as the engine delivered it from its cache, as the chosen replica
was predicted to hold it, as the best candidate held it, as any replica did, as it went by before, as a cache can hold
it at all, and its end. What lies between what was delivered and a mark is lost for the reason that the mark stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from router.fleet.vouching import VouchState
from router.kv.hashes import max_hit_tokens
from router.placement import Placement
from router.request.reasons import Reason
from router.scheduling.decision import Outcome
from router.telemetry.seen_blocks import STANDARD_ERROR, DistinctBlocks, SeenBlocks

STAGES = {
    "prompt": "prompt tokens of requests that were served, as the engine counted them, else as the router did",
    "available": "of them held by the best candidate, as predicted",
    "captured": "held by the chosen one, as predicted",
    "delivered": "read from the engine's cache, as it reported",
    "unobserved": "captured by requests of which the engine did not report what it read",
    "unpredicted": "delivered beyond what was captured",
}
LOSSES = {
    "stale": "predicted at the chosen replica, and not there any more",
    "mismatch": "predicted by tokens or hashes that are not the engine's",
    "load": "held by another candidate, which was passed over for its load or by the policy",
    "unavailable": "held by a replica that could not take the request (draining, ejected, full, tried)",
    "evicted": "held by no replica, though the same tokens went by before",
    "first_time": "never seen before",
    "tail": "the last token and a block that is not full: no prefix cache holds them",
    "not_read": "the engine reads no cache for such requests (logprobs of the prompt)",
    "deadline": "not tokenised in time, so placed by load",
    "not_understood": "not read by the router for other reasons, so placed by load",
}
_NAMES = (*STAGES, *LOSSES)
# Places in `_NAMES`: constants, since they are used on every request's path.
_PROMPT: Final = 0
_AVAILABLE: Final = 1
_CAPTURED: Final = 2
_DELIVERED: Final = 3
_UNOBSERVED: Final = 4
_UNPREDICTED: Final = 5
_STALE: Final = 6
_MISMATCH: Final = 7
_LOAD: Final = 8
_UNAVAILABLE: Final = 9
_EVICTED: Final = 10
_FIRST_TIME: Final = 11
_TAIL: Final = 12
_NOT_READ: Final = 13
_DEADLINE: Final = 14
_NOT_UNDERSTOOD: Final = 15
_LATE = frozenset((Reason.DEADLINE, Reason.QUEUE_FULL, Reason.REMOTE_DEADLINE, Reason.REMOTE_BUSY))
MAX_ACCOUNTS = 256
"""Models and tenants that are kept apart; later ones share one account, `other`. Each takes 16 KB a block size."""
MAX_BLOCK_SIZES = 4
OTHER = ("other", None)
Key = tuple[str, str | None]
"""(model, tenant); a tenant of None is nobody."""


class Account:
    """What was counted for one model and tenant.

    Attributes:
        tokens: By stage and loss, in the order of `STAGES` and `LOSSES`.
        requests: Served.
        unmeasured: Served, and neither side knows how long the prompt was: not in the sums.
        readable: By block size, the tokens that a cache without end could have held.
        missed: By block size, the distinct blocks that were computed since no cache had them.
        is_sole: It has all of its model's requests: those of nobody's, and so there are no tenants.
        seed: Tells this model's blocks apart from another's with equal hashes.
    """

    __slots__ = ("is_sole", "missed", "readable", "requests", "seed", "tokens", "unmeasured")

    def __init__(self, model: str, is_sole: bool = False) -> None:
        self.is_sole = is_sole
        self.tokens = [0] * len(_NAMES)
        self.requests = 0
        self.unmeasured = 0
        self.readable: dict[int, int] = {}
        self.missed: dict[int, DistinctBlocks] = {}
        self.seed = xxhash.xxh64_intdigest(model.encode(errors="surrogatepass"))


@dataclass(slots=True)
class Counted:
    """What one request added, for whoever counts the same elsewhere."""

    prompt: int
    available: int
    captured: int
    delivered: int | None


class ReuseLedger:
    """Counts served requests. Costs a few microseconds each; memory is bounded, whatever clients send."""

    def __init__(self) -> None:
        self.accounts: dict[Key, Account] = {}
        self._seen = SeenBlocks()

    def lost_tokens(self) -> dict[str, int]:
        """Return by reason the tokens that all accounts lost."""
        accounts = list(self.accounts.values())
        return {
            name: sum(account.tokens[place] for account in accounts) for place, name in enumerate(LOSSES, len(STAGES))
        }

    def reuse_of(self, model: str) -> tuple[int, int]:
        """Return a model's prompt tokens, and those of them that the chosen replicas had cached."""
        accounts = [account.tokens for (name, _), account in list(self.accounts.items()) if name == model]
        return sum(tokens[_PROMPT] for tokens in accounts), sum(tokens[_CAPTURED] for tokens in accounts)

    def count(self, model: str, tenant: str | None, placement: Placement, outcome: Outcome) -> Counted:
        """Count a request that was served.

        Args:
            model: A label: bounded.
        """
        # On every request's path: comparisons, since calls to min and max take three times as long.
        account = self.accounts.get((model, tenant)) or self._account(model, tenant)
        account.requests += 1
        decision, prompt, tokens = placement.decision, placement.prompt, account.tokens
        own_tokens = decision.prompt_tokens
        engine_tokens, delivered = outcome.prompt_tokens, outcome.cached_tokens
        whole = prompt.reason is None
        total = engine_tokens if engine_tokens is not None else own_tokens if whole else 0
        if not total:
            account.unmeasured += 1
        captured, available = decision.matched_tokens, decision.available_tokens
        if captured > total:
            captured = total
        if available > total:
            available = total
        if available < captured:
            available = captured
        if delivered is not None and delivered > total:
            delivered = total  # no engine says so; the sums hold all the same
        tokens[_PROMPT] += total
        tokens[_AVAILABLE] += available
        tokens[_CAPTURED] += captured
        at = captured
        if delivered is None:
            tokens[_UNOBSERVED] += captured
        else:
            tokens[_DELIVERED] += delivered
            at = delivered
            if delivered > captured:
                tokens[_UNPREDICTED] += delivered - captured
        length_differs = whole and not prompt.other_tokens and total != own_tokens
        short = _STALE
        if at < captured and (length_differs or _is_mistaken(placement)):
            short = _MISMATCH
        seen, readable = self._seen_and_readable(account, placement, available if available > at else at)
        if readable and whole and prompt.reads_cache:
            rest = _TAIL
        else:
            rest = _rest_of(placement, readable)
        # The last: further prompts of a batch, tokens that the router did not count.
        for place, mark in (
            (short, captured),
            (_LOAD, available),
            (_UNAVAILABLE, decision.unavailable_tokens),
            (_EVICTED, seen),
            (_FIRST_TIME, readable),
            (rest, own_tokens if rest == _TAIL else total),
            (_NOT_UNDERSTOOD, total),
        ):
            if mark > at:
                if mark > total:
                    mark = total
                tokens[place] += mark - at
                at = mark
        return Counted(total, available, captured, delivered)

    def _seen_and_readable(self, account: Account, placement: Placement, held: int) -> tuple[int, int]:
        """Return how many tokens went by before, and how many a cache could hold; take note of the blocks."""
        chain, scheme = placement.chain, placement.unit.scheme
        if scheme is None or not chain:
            return 0, 0
        size = scheme.block_size
        seen = self._seen.note(chain, account.seed)
        if not placement.prompt.reads_cache:
            return 0, 0
        blocks = max_hit_tokens(placement.decision.prompt_tokens, size) // size
        if blocks > len(chain):
            blocks = len(chain)
        missed = account.missed.get(size)
        if missed is None and len(account.missed) < MAX_BLOCK_SIZES:
            missed = account.missed[size] = DistinctBlocks()
            account.readable[size] = 0
        if missed is not None:
            account.readable[size] += blocks * size
            begin = held // size
            if account.is_sole and seen > begin:
                begin = seen  # they were counted when they went by: looking at each again is what a long prompt costs
            if begin < blocks:
                missed.add(chain, begin, blocks)
        return (seen if seen < blocks else blocks) * size, blocks * size

    def _account(self, model: str, tenant: str | None) -> Account:
        key: Key = (model, tenant)
        account = self.accounts.get(key)
        if account is None:
            if len(self.accounts) >= MAX_ACCOUNTS:
                key = OTHER
            account = self.accounts.setdefault(key, Account(model, tenant is None and key is not OTHER))
        return account

    def to_dict(self, *, sketches: bool = False) -> dict[str, Any]:
        """Return all accounts and their sum, for JSON.

        Args:
            sketches: With what another process needs to join its own estimates (up to 22 KB an account).
        """
        accounts = [
            {"model": model, "tenant": tenant, **view_of(account), **(_sketch_of(account) if sketches else {})}
            for (model, tenant), account in self.accounts.items()
        ]
        return {"total": {**summed(accounts), "infinite_cache": infinite_cache(self.accounts)}, "accounts": accounts}


def view_of(account: Account) -> dict[str, Any]:
    """Return an account for JSON."""
    tokens, lost = tokens_of(account)
    return {
        "requests": account.requests,
        "unmeasured_requests": account.unmeasured,
        "tokens": tokens,
        "lost_tokens": lost,
        "infinite_cache": infinite_cache({("", None): account}),
    }


def infinite_cache(accounts: Mapping[Key, Account]) -> dict[str, int]:
    """Return what one cache without end, shared by these accounts, would have hit, for JSON.

    A block that several tenants of a model missed would have been missed once.
    """
    missed: dict[tuple[str, int], DistinctBlocks] = {}
    readable: dict[tuple[str, int], int] = {}
    for (model, _), account in accounts.items():
        for size, blocks in account.missed.items():
            if (model, size) not in missed:
                missed[(model, size)] = blocks if len(accounts) == 1 else DistinctBlocks(bytes(blocks))
            else:
                missed[(model, size)].take(blocks)
            readable[(model, size)] = readable.get((model, size), 0) + account.readable[size]
    hits = error = distinct = 0.0
    for (model, size), blocks in missed.items():
        count = blocks.estimate()
        distinct += count
        hits += max(0.0, readable[(model, size)] - count * size)
        error += STANDARD_ERROR * count * size
    return {
        "hit_tokens": round(hits),
        "standard_error_tokens": round(error),
        "missed_blocks": round(distinct),
    }


def tokens_of(account: Account) -> tuple[dict[str, int], dict[str, int]]:
    """Return an account's tokens by stage, and lost ones by reason."""
    tokens = dict(zip(_NAMES, account.tokens, strict=True))
    return {name: tokens[name] for name in STAGES}, {name: tokens[name] for name in LOSSES}


def _sketch_of(account: Account) -> dict[str, Any]:
    sketch = {
        str(size): {"readable_tokens": account.readable[size], "registers": missed.packed()}
        for size, missed in account.missed.items()
    }
    return {"sketch": sketch}


def summed(accounts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of accounts as `view_of` gives them."""
    total = view_of(Account(""))
    for account in accounts:
        add_to(total, account)
    return total


def add_to(total: dict[str, Any], account: Mapping[str, Any]) -> None:
    """Add an account's figures to those of another."""
    for name, value in total.items():
        if isinstance(value, dict):
            for inner in value:
                value[inner] += account[name][inner]
        elif name in ("requests", "unmeasured_requests"):
            total[name] += account[name]


def _is_mistaken(placement: Placement) -> bool:
    """Tell whether predictions of the request's kind are known not to hold at its unit."""
    return placement.doubted or (placement.record is not None and placement.record.state is VouchState.DISTRUSTED)


def _rest_of(placement: Placement, readable: int) -> int:
    """Return what a prompt loses behind all that a cache could hold."""
    prompt = placement.prompt
    if prompt.reason is not None:
        return _DEADLINE if prompt.reason in _LATE else _NOT_UNDERSTOOD
    if not prompt.reads_cache:
        return _NOT_READ
    scheme = placement.unit.scheme
    if not readable and (scheme is None or max_hit_tokens(prompt.tokens, scheme.block_size)):
        return _NOT_UNDERSTOOD  # its blocks can't be named
    return _TAIL
