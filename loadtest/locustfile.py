"""Load on any OpenAI chat endpoint, with time to first token and hit rate as figures of their own.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --model tiny -u 40 -r 20 -t 1m --headless

Rows of the statistics, a name for each kind of session (chat, document, single, agent, group, trace):

- POST  a whole answer, in ms, from when its request was due; failures by their cause
- TTFT  to the first generated token, in ms, from when its request was due
- ITL   between the pieces of an answer, its mean, in ms
- HIT%  share of the prompt that the engine had cached, 0 to 100 (its mean is over requests; the hit rate at the end is
        over tokens)
- MATCH% the same as the router expected it, where it says so (x-warmroute-matched-tokens)
- REPLICA whole answers by the replica that gave them, where the router names it, in ms
- TENANT whole answers by the number of the API key, in ms
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gevent
from locust import User, events, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.driver.generator import Ticks
from loadtest.driver.records import Record
from loadtest.swarm.client import GeventClient
from loadtest.swarm.figures import Figures, fire_rows
from loadtest.swarm.options import add_options, is_open, sending_of, stages_of, traffic_of
from loadtest.swarm.part import Part, watch
from loadtest.swarm.ramp import Ramp
from loadtest.swarm.reporting import Reporting
from loadtest.swarm.together import Together
from router.errors import ConfigurationError


class OpenAIUser(User):
    """One user: takes the next session and holds it, turn by turn, with its pauses. Where sessions arrive by
    themselves, the first user of a process lets them."""

    part: Part

    @task
    def be(self) -> None:
        """Send until stopped."""
        self.part.serve(GeventClient(str(self.host), self.part.timeout_s))


def prepare(environment: Environment, **_: Any) -> None:
    """Set up this process: alone, as a master, or as a worker."""
    options, runner = environment.parsed_options, environment.runner
    if options is None or runner is None:
        return
    # A worker does not know what its master wants, so it keeps all.
    is_worker = isinstance(runner, WorkerRunner)
    figures = Figures(keep_records=is_worker or bool(options.report or options.write_baseline or options.baseline))
    ticks = Ticks(time.perf_counter)

    def answered(record: Record) -> None:
        figures.add(record)
        fire_rows(environment.events.request.fire, record)

    def make_part() -> Part:
        part = Part(
            traffic_of(options),
            sending_of(options),
            Path(options.tokenizer),
            is_open(options),
            answered,
            options.sessions or None,
        )
        OpenAIUser.part = part
        return part

    reporting = Reporting(environment, options, figures)
    together = Together(runner, make_part, figures, ticks, reporting.begin)
    listen(events.test_start, together.start)
    if not isinstance(runner, MasterRunner):
        gevent.spawn(watch, ticks)
    if isinstance(runner, WorkerRunner):
        listen(events.report_to_master, together.report)
        return
    if isinstance(runner, MasterRunner):
        listen(events.worker_report, together.take_report)
    else:
        reporting.ticks = ticks
    try:
        reporting.check()
    except ConfigurationError as error:
        raise SystemExit(str(error)) from None
    if is_open(options) or options.user_stages:
        stages = stages_of(options.user_stages)
        environment.shape_class = Ramp(stages, lambda: together.workers, lambda: together.is_over)
        environment.shape_class.runner = runner
    listen(events.quitting, reporting.end)


def listen(hook: Any, listener: Any) -> None:
    """Have locust call it."""
    hook.add_listener(listener)


listen(events.init_command_line_parser, add_options)
listen(events.init, prepare)
