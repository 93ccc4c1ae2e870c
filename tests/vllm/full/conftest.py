"""Engines of several set-ups, one after the other, and the seed of the requests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.full.generated import SEED
from tests.vllm.full.line import Line
from tests.vllm.full.models import prepare
from tests.vllm.full.plans import PLANS, Plan


@pytest.fixture(scope="session")
def seed() -> str:
    """What the requests of this run are drawn from."""
    return SEED


class Lines:
    """The plans' engines in the order of the tests: while one is asked, the next one starts on another core.

    An engine's start takes longer than most plans' requests, and all but one core of it is waiting.
    """

    def __init__(self, plans: list[Plan], tiny_model: Path, redis_url: str, folders: pytest.TempPathFactory) -> None:
        """Start nothing yet; `plans` are those that the run's tests ask for."""
        self._plans = plans
        self._tiny_model = tiny_model
        self._redis_url = redis_url
        self._folders = folders
        self._begun: dict[str, Line] = {}

    def take(self, plan: Plan) -> Line:
        """Return a plan's line, warm and trusted; the caller stops it. The next one's engine is then under way."""
        line = self._begun.pop(plan.name, None) or self._begin(plan)
        try:
            line.finish()
        except BaseException:
            line.stop()
            raise
        place = self._plans.index(plan) + 1
        if place < len(self._plans):
            following = self._plans[place]
            self._begun[following.name] = self._begin(following)
        return line

    def _begin(self, plan: Plan) -> Line:
        number = PLANS.index(plan)
        cores = sorted(os.sched_getaffinity(0))
        served = prepare(plan, self._tiny_model, self._folders.mktemp(plan.name))
        # A database of its own: agents that start with their engine are there before the one before has gone.
        line = Line(plan, self._folders.mktemp("line"), f"{self._redis_url.rpartition('/')[0]}/{1 + number}")
        line.begin(served, cores[number % len(cores)])
        return line

    def stop(self) -> None:
        """End the engines that nobody took."""
        for line in self._begun.values():
            line.stop()


@pytest.fixture(scope="session")
def lines(
    request: pytest.FixtureRequest, tiny_model: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lines]:
    """The lines of all plans that this run's tests ask for."""
    asked = {plan.name for item in request.session.items if (plan := plan_of(item)) is not None}
    plans = [plan for plan in PLANS if plan.name in asked]
    lines = Lines(plans, tiny_model, valkey_server, tmp_path_factory)
    try:
        yield lines
    finally:
        lines.stop()


@pytest.fixture(scope="session")
def line(request: pytest.FixtureRequest, lines: Lines) -> Iterator[Line]:
    """One plan's engine with agent and router, warm and trusted."""
    plan: Plan = request.param
    started = time.monotonic()
    line = lines.take(plan)
    print(f"the engine of plan {plan.name} was waited for {time.monotonic() - started:.0f} s")
    try:
        yield line
    finally:
        line.stop()


def plan_of(item: pytest.Item) -> Plan | None:
    """Return the plan whose engine a test asks for; None where it asks for none."""
    callspec = getattr(item, "callspec", None)
    plan = None if callspec is None else callspec.params.get("line")
    return plan if isinstance(plan, Plan) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring tests on one plan together, whichever file they are in: an engine starts once."""
    names = [plan.name for plan in PLANS]

    def place(item: pytest.Item) -> int:
        plan = plan_of(item)
        return -1 if plan is None else names.index(plan.name)

    items.sort(key=place)
