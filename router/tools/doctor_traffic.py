"""`warmroute doctor --traffic`: why hits are low. Pure but for `examine`.

Requests are compared with those before them. What they share at the beginning, a cache can serve; what they share
further on, behind something that differs, it can't: those are the findings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.tools.doctor_case import Options
from router.tools.doctor_report import Finding, Result, Status
from router.tools.doctor_requests import Request, common_tokens, from_bodies, from_router
from router.tools.doctor_turns import dropped_in_bodies, rerendered

WRONG_SHARE = 0.1
"""Of the tokens (requests) looked at: less is no fault."""
LEAST_REQUESTS = 3
LOW_SHARE = 0.8
"""Delivered tokens, of those that one endless cache would have served: fewer are worth a warning."""
LEAST_EQUAL_PASSAGES = 3
"""Equal runs of 8 tokens behind a difference that make it worth telling."""
CANDIDATES = 8
TOLD = 3
AROUND_CHARACTERS = 30
DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a request parts from the earlier one that it has most in common with.

    Attributes:
        at: First token that differs, from 0.
        resumes: Where, in the later request, text that both have begins again; None when it does not.
        again_tokens: Tokens from there to the end of the last equal passage: what is computed twice.
    """

    request: Request
    earlier: Request
    at: int
    resumes: int | None
    again_tokens: int


def examine(options: Options, bodies: Path | None, limit: int) -> list[Result]:
    """Return what is found in a file's or a router's requests.

    Raises:
        ConfigurationError: They can't be had.
    """
    if bodies is not None:
        size = options.block_size or DEFAULT_BLOCK_SIZE
        requests = from_bodies(bodies, options.tokenizer, options.chat_template, size)
    elif options.router is not None:
        requests = from_router(options.router, limit)
    else:
        requests = []
    return judge(requests)


def judge(requests: Sequence[Request]) -> list[Result]:
    """Return what is found in requests, oldest first."""
    found = partings(requests)
    rows: tuple[tuple[str, str, str, str, Callable[[], list[Finding]]], ...] = (
        (
            "traffic.share",
            "what a cache could serve",
            "The bound is one endless cache for all requests, less answers; what is delivered can't be more by much.",
            "see the findings below; where there are none, prompts have little in common",
            lambda: share(requests),
        ),
        (
            "traffic.divergence",
            "where prompts part",
            "A cache serves equal beginnings only: one token that differs makes everything behind it be computed anew.",
            "move what changes (date, id, user's name) behind what is shared: to the end of the system message or into "
            "the last message",
            lambda: divergence(requests, found),
        ),
        (
            "traffic.padding",
            "blocks that are nearly shared",
            "Only whole blocks are shared: the tokens of a last, partly shared block are computed in every request.",
            "pad the shared text by as many tokens",
            lambda: padding(requests, found),
        ),
        (
            "traffic.rerendered",
            "answers in the next turn",
            "An answer's blocks are found again only when the next turn renders it to the very same tokens.",
            "send answers back as they came: reasoning included, tool arguments as the same string; or use a template "
            "that keeps them",
            lambda: rerendered(requests) + dropped_in_bodies(requests),
        ),
    )
    return [Result(*row[:4], findings) for row in rows if (findings := row[4]())]


def share(requests: Sequence[Request]) -> list[Finding]:
    """What part of the traffic can hit at all, and what part did."""
    if not requests:
        return [Finding(Status.SKIPPED, "no request to look at")]
    total = sum(request.tokens for request in requests)
    possible, first = 0, 0
    seen: set[int] = set()
    for request in requests:
        known = next((place for place, block in enumerate(request.blocks) if block not in seen), len(request.blocks))
        if known == 0 and request.most_hit_tokens and request.reason is None:
            first += 1
        possible += min(known * request.block_size, request.most_hit_tokens)
        seen.update(request.blocks)
    lines = [f"{first} of {len(requests)} requests begin with a block that none before had"]
    short = sum(request.reason is None and request.reads_cache and not request.most_hit_tokens for request in requests)
    if short:
        lines.append(f"{short} can't hit: shorter than a block and a token")
    if unread := sum(not request.reads_cache for request in requests):
        lines.append(f"{unread} can't hit: they ask for logprobs of their prompt")
    for reason, count in Counter(request.reason for request in requests if request.reason).most_common():
        lines.append(f"{count} were not understood and placed by load: {reason}")
    told = [request for request in requests if request.cached_tokens is not None]
    detail = f"{_part(possible, total)} of {total} prompt tokens could be found in one endless cache"
    if not told:
        return [Finding(Status.FINE, detail, lines=tuple(lines))]
    delivered = sum(request.cached_tokens or 0 for request in told)
    detail += f"; {_part(delivered, sum(request.tokens for request in told))} were delivered"
    low = delivered < LOW_SHARE * possible and len(told) == len(requests)
    remedy = (
        "see what `available` and `captured` of warmroute_reuse_tokens_total say: caches too small, or load spread out"
    )
    return [Finding(Status.WARNING if low else Status.FINE, detail, remedy=remedy, lines=tuple(lines))]


def partings(requests: Sequence[Request]) -> list[Parting]:
    """Return for each request with an earlier one like it where the two part."""
    found = []
    by_passage: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    by_block: dict[tuple[object, ...], int] = {}
    for number, request in enumerate(requests):
        if request.reason is not None:
            continue
        kin = (request.model, request.salt)
        likely = Counter(
            earlier for passage in request.passages for earlier in by_passage[(*kin, passage)][-CANDIDATES:]
        )
        nearest = [earlier for earlier, _ in likely.most_common(CANDIDATES)]
        last_known = next((by_block[(*kin, b)] for b in reversed(request.blocks) if (*kin, b) in by_block), None)
        candidates = {*nearest, *([] if last_known is None else [last_known])}
        if candidates:
            pairs = [_parting(request, requests[earlier]) for earlier in sorted(candidates)]
            found.append(max(pairs, key=lambda pair: (pair.at + pair.again_tokens, pair.at)))
        for passage in request.passages:
            by_passage[(*kin, passage)].append(number)
        for block in request.blocks:
            by_block[(*kin, block)] = number
    return found


def _parting(request: Request, earlier: Request) -> Parting:
    at = common_tokens(request, earlier)
    behind = sorted(
        place for passage, place in request.passages.items() if place >= at and earlier.passages.get(passage, -1) >= at
    )
    if len(behind) < LEAST_EQUAL_PASSAGES:
        return Parting(request, earlier, at, None, 0)
    return Parting(request, earlier, at, behind[0], behind[-1] + 8 - behind[0])


def divergence(requests: Sequence[Request], found: Sequence[Parting]) -> list[Finding]:
    """Prompts that part at the same place and have the same text behind it."""
    groups: defaultdict[tuple[str | None, int], list[Parting]] = defaultdict(list)
    for parting in found:
        if parting.resumes is not None:
            groups[(parting.request.model, _block_of(parting))].append(parting)
    findings = []
    for (model, block), group in sorted(groups.items(), key=lambda item: -_lost(item[1]))[:TOLD]:
        if len(group) < LEAST_REQUESTS or _lost(group) < WRONG_SHARE * sum(request.tokens for request in requests):
            continue
        at = Counter(parting.at for parting in group).most_common(1)[0][0]
        size = group[0].request.block_size
        detail = (
            f"{len(group)} of {len(requests)} requests part from an earlier one in block {block} (tokens "
            f"{block * size} to {block * size + size - 1}), most often at token {at}, with equal text behind it: some "
            f"{_lost(group) // len(group)} tokens each are computed again. Something there changes with each request"
        )
        findings.append(Finding(Status.WRONG, detail, str(model or ""), lines=_example(group, at)))
    if not findings and requests:
        findings.append(Finding(Status.FINE, "no equal text behind a difference"))
    return findings


def padding(requests: Sequence[Request], found: Sequence[Parting]) -> list[Finding]:
    """Shared beginnings that end within a block."""
    groups: Counter[tuple[str | None, int, int, int]] = Counter()
    for parting in found:
        at, size = parting.at, parting.request.block_size
        exact = parting.request.ids is not None or at < len(parting.request.steps)
        ends = min(parting.request.tokens, parting.earlier.tokens)
        if exact and parting.resumes is None and size <= at < ends and at % size:
            prefix = parting.request.blocks[at // size - 1]
            groups[(parting.request.model, prefix, at, size)] += 1
    findings = []
    for (model, _, at, size), count in groups.most_common(TOLD):
        missing, kept = size - at % size, at % size
        if count < max(LEAST_REQUESTS, WRONG_SHARE * len(requests)) or kept < missing:
            continue
        detail = (
            f"{count} requests share {at} tokens with an earlier one: {at // size} blocks, and {kept} tokens of the "
            f"next, which are computed each time; {missing} tokens of padding would complete that block"
        )
        findings.append(Finding(Status.WARNING, detail, str(model or "")))
    if not findings and requests:
        findings.append(Finding(Status.FINE, "no shared beginning that padding would help"))
    return findings


def _block_of(parting: Parting) -> int:
    return parting.at // parting.request.block_size


def _lost(group: Iterable[Parting]) -> int:
    return sum(parting.again_tokens for parting in group)


def _example(group: Sequence[Parting], at: int) -> tuple[str, ...]:
    for parting in group:
        if parting.at == at:
            names = f"as {parting.earlier.name} and {parting.request.name}"
            one, other = parting.earlier.text, parting.request.text
            if not one or not other:
                return (f"{names}, equal again from token {parting.resumes}",)
            place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            cut = slice(max(0, place - AROUND_CHARACTERS), place + AROUND_CHARACTERS)
            return (f"{names}:", repr(one[cut]), repr(other[cut]))
    return ()


def _part(tokens: int, total: int) -> str:
    return f"{tokens / total:.0%}" if total else "0%"
