"""The loop: strike, wait until the hit rate is back, go on for a while, and now and then pause and look."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from router.tools.chaos.fleet import ChaosFleet
from router.tools.chaos.questions import get_json
from router.tools.chaos.traffic import TIMEOUT_S, Attempt, Traffic
from router.tools.processes import StartError
from router.tools.soak.churn import Churn
from router.tools.soak.hits import BOUND_TURNS, TOLERANCE, WINDOW_TURNS, Hits, Window
from router.tools.soak.looks import Looks
from router.tools.soak.plan import Event, Kind, plan

SLOT_S = 35.0
"""From one event to the next, where the hit rate is back by then: 10 minutes have room for every kind."""
EVENTS_A_LOOK = 3
WARM_TURNS = 100
"""Later turns of chats before anything is measured: caches fill, and hash schemes are proven."""
LEAST_SHARE = 0.7
"""Of the calm before the first event. Less would mean that there is nothing to recover."""
STANDSTILL_S = 120.0
"""No window can take so long while users are answered."""
REPLICA_KILLED = "upstream_broken"
"""What the router notes of a request whose engine broke off."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What came of one event.

    Attributes:
        after_turns: Later turns of chats from its end until the hit rate was back; None: it was not.
        after_s: Seconds until then.
        share: Of the last turns, then.
    """

    event: Event
    after_turns: int | None
    after_s: float
    share: float


class Soak:
    """One run."""

    def __init__(
        self,
        fleet: ChaosFleet,
        client: aiohttp.ClientSession,
        seed: int,
        say: Callable[[str], None],
        slot_s: float = SLOT_S,
    ) -> None:
        self._slot_s = slot_s
        self._fleet = fleet
        self._client = client
        self._seed = seed
        self._say = say
        self._hits = Hits()
        self._traffic = Traffic(fleet, client, seed, self._hits.answered, self._cut)
        self._churn = Churn(fleet, client, seed)
        self._looks = Looks(fleet, client)
        self._calm = 0.0
        self._recoveries: list[Recovery] = []
        self._problems: list[str] = []
        self._told: Counter[str] = Counter()
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self, minutes: float) -> None:
        """Run for so long, and until every kind of event has come once, but for no more than half as long again."""
        began_s = time.monotonic()
        self._traffic.start()
        try:
            await self._settle()
            await self._look()
            for number, event in enumerate(plan(self._seed)):
                gone_s = time.monotonic() - began_s
                if gone_s > 60 * minutes and (number >= len(Kind) or gone_s > 90 * minutes):
                    break
                slot_ends_s = time.monotonic() + self._slot_s
                await self._event(event)
                if (number + 1) % EVENTS_A_LOOK == 0:
                    await self._look()
                await asyncio.sleep(min(slot_ends_s, began_s + 60 * minutes) - time.monotonic())
            await self._look()
        finally:
            await self._traffic.stop()
            await asyncio.gather(*self._asking)
        struck = {recovery.event.kind for recovery in self._recoveries}
        self._problems += [f"{kind} never came: the machine is too slow" for kind in Kind if kind not in struck]

    def problems(self) -> list[str]:
        """Return everything that is not as it should be, in words."""
        unexpected = [text for process in self._fleet.processes().values() for text in process.unexpected]
        failures = self._traffic.tally.failures
        return [*failures, *self._problems, *self._churn.problems, *unexpected, *self._looks.lives.problems()]

    def result(self) -> dict[str, Any]:
        """Return the counts."""
        tally, looks = self._traffic.tally, self._looks
        by_kind: dict[str, list[Recovery]] = defaultdict(list)
        for recovery in self._recoveries:
            by_kind[recovery.event.kind].append(recovery)
        return {
            "passed": not self.problems(),
            "seed": self._seed,
            "requests": tally.requests,
            "failures": len(tally.failures),
            "left_by_the_client": tally.left,
            "cut_by_a_death": dict(tally.excused),
            "cut_and_told_why": dict(self._told),
            "asked_the_other_router": tally.elsewhere,
            "slowest_answer_s": round(tally.slowest_s, 1),
            "calm_share": round(self._calm, 3),
            "whole_share": round(self._hits.share, 3),
            "bound_turns": BOUND_TURNS,
            "events": {kind: _row(each) for kind, each in sorted(by_kind.items())},
            "looks": looks.count,
            "blocks_compared": looks.blocks,
            "slowest_comparison_s": round(looks.slowest_s, 1),
            **looks.lives.to_dict(),
            "problems": self.problems(),
        }

    async def _settle(self) -> None:
        await self._reached(Window(time.monotonic(), size=WARM_TURNS), WARM_TURNS)
        calm = Window(time.monotonic(), size=WARM_TURNS)
        await self._reached(calm, WARM_TURNS)
        self._calm = calm.share
        self._say(f"calm: a later turn of a chat finds {self._calm:.1%} of the turn before it cached")
        if self._calm < LEAST_SHARE:
            self._problems.append(f"before any event the share is {self._calm:.1%}, below {LEAST_SHARE:.0%}")

    async def _event(self, event: Event) -> None:
        began_s = time.monotonic()
        try:
            await self._churn.strike(event)
        except StartError as error:
            self._problems.append(f"{event}: {error}")
        over_s = time.monotonic()
        window = Window(over_s, self._calm - TOLERANCE)
        reached = await self._reached(window, BOUND_TURNS)
        after_s = time.monotonic() - over_s
        self._recoveries.append(Recovery(event, window.seen if reached else None, after_s, window.share))
        told = f"{window.share:.1%} after {window.seen} turns, {after_s:.1f} s"
        self._say(f"{time.strftime('%H:%M:%S')} {event}: took {over_s - began_s:.1f} s; {told}")
        if not reached:
            self._problems.append(
                f"{event}: {BOUND_TURNS} turns later the last {WINDOW_TURNS} found {window.share:.1%} cached, and "
                f"{self._calm - TOLERANCE:.1%} are wanted ({after_s:.0f} s)"
            )

    async def _reached(self, window: Window, most_turns: int) -> bool:
        try:
            async with asyncio.timeout(STANDSTILL_S):
                return await self._hits.until_reached(window, most_turns)
        except TimeoutError:
            self._problems.append(f"users stood still: {window.seen} turns in {STANDSTILL_S:g} s")
            return False

    async def _look(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * TIMEOUT_S):
                await self._traffic.pause()
        problems = await self._looks.take(self._traffic.tally.requests)
        self._problems += [f"look {self._looks.count}: {text}" for text in problems]
        self._say(f"look {self._looks.count}: {self._traffic.tally.requests:,} requests, {len(problems)} problems")
        self._traffic.resume()

    def _cut(self, attempt: Attempt, cause: str) -> None:
        """See to it that the router tells why an answer broke off. One that was killed can't."""
        if cause == "router_killed":
            self._told[cause] += 1
            return
        task = asyncio.create_task(self._ask_why(attempt))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_why(self, attempt: Attempt) -> None:
        if attempt.status == 200 and attempt.answer.error:
            self._told[attempt.answer.error] += 1
            return
        url = self._fleet.router_urls[attempt.router]
        decision = await get_json(self._client, f"{url}/admin/decisions/{attempt.request_id}")
        outcome = (decision.get("decision") or decision).get("outcome") or {}
        if outcome.get("error"):
            self._told[outcome["error"]] += 1
        elif not self._fleet.outages.touched(f"router-{attempt.router}", attempt.began_s):
            self._problems.append(f"{attempt.replica} died in an answer, and the router does not tell: {outcome}")


def _row(recoveries: list[Recovery]) -> dict[str, Any]:
    turns = [each.after_turns for each in recoveries]
    return {
        "times": len(recoveries),
        "most_turns": None if None in turns else max(each for each in turns if each is not None),
        "most_s": round(max(each.after_s for each in recoveries), 1),
    }
