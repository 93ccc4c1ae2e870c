"""What is in flight at one unit, in prefill tokens.

A placed request's uncached tokens count until its first token shows that they are computed. An engine computes first
come, first served, so the oldest one without a first token is taken to be the one being computed: its tokens melt
away at the unit's learned prefill speed, to no less than 5% (it has not answered, so something is left). An answer
that is not streamed shows no first token: it is taken as computed when its tokens have melted.

Other routers send there too, and so do the router's other workers. They tell how old their oldest waiting prompt is:
while it is older than the oldest here, nothing here melts, or all of them would see their own computed at once. They
tell what was computed for them too, which counts for the speed.

The speed is learned over stretches of work: prompt tokens computed, over the time until their first tokens. An engine
computes several short prompts in one step, whose first tokens come together, so a stretch ends only with a pause
between first tokens. A prompt whose uncached tokens are only guessed (not understood, or a cache that the router does
not know) spoils its stretch.

Releasing touches the `UnitLoad` that the reservation was made on, not a name: when a replica leaves and comes back
under the same name, old releases can't touch the new count.
"""

from __future__ import annotations

from collections import OrderedDict

from router.native.subclassing import mypyc_attr

NEVER = float("inf")
MIN_STRETCH_TOKENS = 256
"""Less work says more about overheads than about speed."""
MIN_STRETCH_S = 0.02
MIN_SHARED_STRETCH_S = 0.5
"""With prompts of others in it: these are told a little late."""
NEW_SAMPLE_SHARE = 0.2
MAX_MELTED_SHARE = 0.95


class Reservation:
    """One placed request. `UnitLoad` alone changes it."""

    __slots__ = (
        "context_tokens",
        "load",
        "most_melted_tokens",
        "observable",
        "placed_s",
        "released",
        "teaches",
        "uncached_tokens",
        "waiting",
    )

    def __init__(
        self,
        load: UnitLoad,
        uncached_tokens: int,
        placed_s: float,
        *,
        context_tokens: int,
        observable: bool,
        teaches: bool,
    ) -> None:
        self.load = load
        self.uncached_tokens = uncached_tokens
        self.context_tokens = context_tokens
        self.most_melted_tokens = MAX_MELTED_SHARE * uncached_tokens
        self.placed_s = placed_s
        self.observable = observable
        self.teaches = teaches
        self.waiting = True
        self.released = False


@mypyc_attr(allow_interpreted_subclasses=True)
class UnitLoad:
    """The in-flight ledger of one unit."""

    __slots__ = (
        "_computing_since_s",
        "_head",
        "_others_head_s",
        "_queued_tokens",
        "_stretch_is_clean",
        "_stretch_is_shared",
        "_stretch_since_s",
        "_stretch_tokens",
        "_stretch_until_s",
        "_waiting",
        "computed_tokens",
        "context_tokens",
        "peer_head_s",
        "placed_tokens",
        "prefill_tokens_per_s",
        "requests",
        "samples",
        "sibling_head_s",
    )

    def __init__(self, prefill_tokens_per_s: float) -> None:
        self.prefill_tokens_per_s = prefill_tokens_per_s
        """Learned from first tokens; begins as configured."""
        self.samples = 0
        self.requests = 0
        """Requests placed here that have not ended."""
        self.context_tokens = 0
        """Their prompts, whole: what they hold of the cache, but for answers and what they share."""
        self.placed_tokens = 0
        """Uncached tokens that were ever placed here."""
        self.computed_tokens = 0
        """Uncached prompt tokens whose first token was seen, ever."""
        self.peer_head_s = self.sibling_head_s = self._others_head_s = NEVER
        """When the oldest waiting prompt of other routers, and of other workers, was placed here."""
        self._waiting: OrderedDict[Reservation, None] = OrderedDict()
        self._head: Reservation | None = None
        self._queued_tokens = 0
        self._computing_since_s = 0.0
        self._stretch_is_clean = True
        """All that was computed since the stretch began is counted, or will be told."""
        self._stretch_is_shared = False
        self._stretch_since_s = 0.0
        self._stretch_until_s = 0.0
        self._stretch_tokens = 0.0

    def reserve(
        self,
        uncached_tokens: int,
        now_s: float,
        *,
        context_tokens: int | None = None,
        observable: bool = True,
        teaches: bool = True,
    ) -> Reservation:
        """Count a placed request.

        Args:
            uncached_tokens: Prompt tokens that this unit will have to compute, at least 0.
            now_s: The clock.
            context_tokens: The whole prompt's; none: as many as are uncached.
            observable: Whether its first token will be seen (a streamed answer).
            teaches: Whether `uncached_tokens` is known, not guessed.
        """
        self._settle(now_s)
        context_tokens = uncached_tokens if context_tokens is None else context_tokens
        reservation = Reservation(
            self, uncached_tokens, now_s, context_tokens=context_tokens, observable=observable, teaches=teaches
        )
        if self._head is None:
            self._head = reservation
            self._computing_since_s = now_s
            self._end_stretch()
            self._begin_stretch(now_s)
            self._stretch_is_clean = self._others_head_s == NEVER
        self._waiting[reservation] = None
        self._queued_tokens += uncached_tokens
        self.requests += 1
        self.context_tokens += context_tokens
        self.placed_tokens += uncached_tokens
        return reservation

    def first_token(self, reservation: Reservation, now_s: float) -> None:
        """Its prompt is computed; the unit's speed is learned from it and those before it."""
        if not reservation.waiting:
            return
        if now_s - self._stretch_until_s >= MIN_STRETCH_S and self._end_stretch():
            self._begin_stretch(self._stretch_until_s)
        if self._stretch_is_clean:
            self._stretch_tokens += reservation.uncached_tokens
        self.computed_tokens += reservation.uncached_tokens
        self._stretch_until_s = now_s
        if not (reservation.teaches and self._stretch_is_clean):
            self._begin_stretch(now_s)
        self._leave(reservation, now_s)

    def release(self, reservation: Reservation, now_s: float) -> None:
        """The request ended, however it did. Only the first call counts."""
        if reservation.released:
            return
        reservation.released = True
        self.requests -= 1
        self.context_tokens -= reservation.context_tokens
        if reservation.waiting:
            # It never showed when it was computed, or never was.
            self._leave(reservation, now_s)
            self._begin_stretch(now_s)

    def others_wait_since(self, *, peer_head_s: float | None = None, sibling_head_s: float | None = None) -> None:
        """When others' oldest waiting prompts were placed here, `NEVER` for none; None leaves a figure as it is."""
        self.peer_head_s = self.peer_head_s if peer_head_s is None else peer_head_s
        self.sibling_head_s = self.sibling_head_s if sibling_head_s is None else sibling_head_s
        self._others_head_s = min(self.peer_head_s, self.sibling_head_s)

    def computed_for_others(self, tokens: float, now_s: float) -> None:
        """The unit computed tokens of prompts that others placed: its speed shows in those, too."""
        if self._head is None:
            return
        if self._stretch_is_clean:
            self._stretch_tokens += tokens
            self._stretch_is_shared = True
        else:
            # Some of it may have been computed before the stretch began; what follows, after.
            self._begin_stretch(now_s)

    def head_age_s(self, now_s: float) -> float | None:
        """Return for how long the oldest prompt that is not computed has been placed here; None for none."""
        self._settle(now_s)
        return None if self._head is None else max(0.0, now_s - self._head.placed_s)

    def backlog_tokens(self, now_s: float) -> float:
        """Prompt tokens placed here that are not computed yet."""
        head = self._head
        if head is None:
            return 0.0
        if self._others_head_s < head.placed_s:
            self._settle(now_s)
            return float(self._queued_tokens)
        if not head.observable:
            self._settle(now_s)
            head = self._head
            if head is None:
                return 0.0
        # Asked of every unit for each request: comparisons, since calls to min and max take twice as long.
        melted, most = (now_s - self._computing_since_s) * self.prefill_tokens_per_s, head.most_melted_tokens
        if melted > most:
            return self._queued_tokens - most
        return self._queued_tokens - melted if melted > 0.0 else float(self._queued_tokens)

    def oldest_waiting_s(self, now_s: float) -> float:
        """Return for how long the oldest prompt has waited here without a sign of being computed; 0 for none."""
        self._settle(now_s)
        return 0.0 if self._head is None else max(0.0, now_s - self._head.placed_s)

    def _settle(self, now_s: float) -> None:
        while self._head is not None:
            head = self._head
            if self._others_head_s < head.placed_s:
                self._computing_since_s = max(self._computing_since_s, now_s)  # another one is being computed
                return
            done_s = self._computing_since_s + head.uncached_tokens / self.prefill_tokens_per_s
            if head.observable or done_s > now_s:
                return
            self._leave(head, done_s)
            self._begin_stretch(now_s)

    def _leave(self, reservation: Reservation, now_s: float) -> None:
        del self._waiting[reservation]
        reservation.waiting = False
        self._queued_tokens -= reservation.uncached_tokens
        if self._head is reservation:
            self._head = next(iter(self._waiting), None)
            if self._head is not None:
                self._computing_since_s = max(now_s, self._head.placed_s)

    def _begin_stretch(self, now_s: float) -> None:
        self._stretch_since_s = self._stretch_until_s = now_s
        self._stretch_is_clean, self._stretch_is_shared = True, False
        self._stretch_tokens = 0.0

    def _end_stretch(self) -> bool:
        """Learn from a stretch that is long enough to tell something; return whether it was."""
        elapsed_s = self._stretch_until_s - self._stretch_since_s
        least_s = MIN_SHARED_STRETCH_S if self._stretch_is_shared else MIN_STRETCH_S
        if elapsed_s < least_s or self._stretch_tokens < MIN_STRETCH_TOKENS:
            return False
        self.samples += 1
        weight = max(NEW_SAMPLE_SHARE, 1.0 / (self.samples + 1))
        self.prefill_tokens_per_s += weight * (self._stretch_tokens / elapsed_s - self.prefill_tokens_per_s)
        return True
