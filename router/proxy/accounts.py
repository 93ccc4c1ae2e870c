"""A tenant's request on its way: what it may use, what its answer tells, what it has used."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from router.proxy.exchange import Headers
from router.proxy.usage import UsageTap
from router.request.auth.limits import TenantLimits, TokenReservation
from router.request.auth.tenants import Tenant
from router.request.prompt import Kind, Prompt
from router.scheduling.decision import Outcome

_EVENT_END = re.compile(rb"\n\r?\n")


class TenantRequest:
    """One request of a tenant's.

    Attributes:
        tenant: Whose it is, as the configuration was when it came.
        priority: Of it; lower goes first.
        cost_tokens: What it will take of an engine, by estimate: prompt and answer.
    """

    __slots__ = (
        "_assumed_answer_tokens",
        "_events",
        "_limits",
        "_longest",
        "_reservation",
        "cost_tokens",
        "priority",
        "tenant",
    )

    def __init__(
        self,
        tenant: Tenant,
        limits: TenantLimits,
        assumed_answer_tokens: int,
        longest: Callable[[str], int | None],
    ) -> None:
        self.tenant = tenant
        self.priority = tenant.priority
        self.cost_tokens = 0
        self._limits = limits
        self._assumed_answer_tokens = assumed_answer_tokens
        self._longest = longest
        self._reservation: TokenReservation | None = None
        self._events: EventTap | None = None

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self.tenant.name

    @property
    def weight(self) -> float:
        """The tenant's share of the queue."""
        return self.tenant.weight

    @property
    def tells_cached(self) -> bool:
        """Whether its answer may tell what is cached."""
        return self.tenant.tells_cached

    def headers(self) -> Headers:
        """Return what is left of the tenant's limits."""
        return self._limits.headers(self.tenant, time.monotonic())

    def read(self, prompt: Prompt) -> None:
        """The prompt is known: set aside what it will use.

        Raises:
            PriorityRefusedError: It asks for a priority that it may not have.
            RateLimitedError: So many tokens are not left.
        """
        self.priority = self.tenant.priority_of(prompt.priority)
        answer = 0 if prompt.kind in (Kind.POOLING, Kind.OTHER) else prompt.max_tokens
        if answer is None or answer < 0:
            answer = self._assumed_answer_tokens
        longest = None if prompt.model is None else self._longest(prompt.model)
        if longest is not None:
            answer = min(answer, max(0, longest - prompt.tokens))  # clients that want no limit ask for millions
        self.cost_tokens = prompt.tokens + prompt.other_tokens + prompt.n * answer
        self._reservation = self._limits.reserve_tokens(self.tenant, self.cost_tokens, time.monotonic())

    def tap(self, prompt: Prompt | None) -> UsageTap:
        """Return what reads the answer's usage; of a stream that will not tell it, it counts the events."""
        if self._reservation is None or prompt is None or not prompt.stream or prompt.include_usage:
            return UsageTap()
        self._events = EventTap()
        return self._events

    def ended(self, outcome: Outcome, prompt: Prompt | None, *, answered: bool) -> None:
        """The request ended: only what it used stays taken.

        Args:
            answered: Whether an engine answered it, or at least was at work on it.
        """
        if self._reservation is not None:
            self._reservation.settle(self._used(outcome, prompt) if answered else 0, time.monotonic())

    def _used(self, outcome: Outcome, prompt: Prompt | None) -> int:
        if outcome.status is not None and outcome.status >= 400:
            return 0
        told = outcome.prompt_tokens
        if told is not None:
            return told + (outcome.completion_tokens or 0)
        prompt_tokens = 0 if prompt is None else prompt.tokens + prompt.other_tokens
        if self._events is not None:
            return prompt_tokens + self._events.events
        # An answer that was cut before its usage came, or one that never tells.
        return prompt_tokens if outcome.aborted or outcome.error is not None else self.cost_tokens


class EventTap(UsageTap):
    """Counts a stream's events too: an engine sends one a token, or joins a few when it is busy.

    Attributes:
        events: So far.
    """

    __slots__ = ("_end", "events")

    def __init__(self) -> None:
        super().__init__()
        self.events = 0
        self._end = b""
        """The last bytes, which may be the beginning of an event's end."""

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the body."""
        text = self._end + data if self._end else data
        counted = 0
        for end in _EVENT_END.finditer(text):
            self.events += 1
            counted = end.end()
        self._end = text[max(counted, len(text) - 2) :]
        super().feed(data)
