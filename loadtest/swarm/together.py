"""Master and workers: who makes which share, when all begin, and when all is sent.

The master gives each worker a number (`share`) before it spawns users. A worker makes its sessions and says `prepared`;
when all have, the master says `begin`: so arrivals of all workers count from the same moment, however long a worker
took. A worker that has sent its share and has all answers says `finished`, with its last figures. A single process is
its own master.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import LocalRunner, MasterRunner, Runner, WorkerRunner

from loadtest.driver.generator import Ticks
from loadtest.swarm.figures import Figures
from loadtest.swarm.part import Part
from loadtest.workloads.traffic import ALL, Share

SHARE, PREPARED, BEGIN, FINISHED = (f"warmroute_{word}" for word in ("share", "prepared", "begin", "finished"))
KEY = "warmroute"


class Together:
    """One process' side of it."""

    def __init__(
        self,
        runner: Runner,
        make_part: Callable[[], Part],
        figures: Figures,
        ticks: Ticks,
        on_begin: Callable[[], None],
    ) -> None:
        """Take part.

        Args:
            make_part: Called when a test starts: a worker has its master's options only then.
            ticks: Of this process.
            on_begin: Called where the figures are gathered, when all begin.
        """
        self._runner = runner
        self._make_part = make_part
        self._part: Part | None = None
        self._figures = figures
        self._ticks = ticks
        self._on_begin = on_begin
        self._share = ALL
        self._waited_for: set[str] = set()
        self._unfinished: set[str] = set()
        self.is_over = False
        listeners: dict[str, Callable[..., None]] = {}
        if isinstance(runner, MasterRunner):
            listeners = {PREPARED: self._prepared, FINISHED: self._finished}
        elif isinstance(runner, WorkerRunner):
            listeners = {SHARE: self._take_share, BEGIN: self._begin}
        for name, listener in listeners.items():
            runner.register_message(name, listener)

    @property
    def workers(self) -> int:
        """How many there are, at least 1."""
        return max(1, self._runner.worker_count) if isinstance(self._runner, MasterRunner) else 1

    def start(self, **_: Any) -> None:
        """Prepare a test that starts."""
        self.is_over = False
        if isinstance(self._runner, MasterRunner):
            clients = self._runner.clients
            present = sorted(client.id for client in clients.ready + clients.spawning + clients.running)
            self._waited_for, self._unfinished = set(present), set(present)
            for number, client in enumerate(present):
                self._runner.send_message(SHARE, {"number": number, "of": len(present)}, client)
        else:
            self._part = self._make_part()
            gevent.spawn(self._prepare, self._part)

    def report(self, client_id: str, data: dict[str, Any]) -> None:
        """Send what a worker counted since its last report."""
        data[KEY] = self._figures.take(self._ticks)

    def take_report(self, client_id: str, data: dict[str, Any]) -> None:
        """Add a worker's figures to the master's."""
        if KEY in data:
            self._figures.merge(data[KEY])

    def _prepare(self, part: Part) -> None:
        # On a thread of its own: prompts of a long trace take minutes, and a worker that is silent is taken for lost.
        gevent.get_hub().threadpool.apply(part.prepare, (self._share,))
        if isinstance(self._runner, LocalRunner):
            self._begin()
        else:
            self._runner.send_message(PREPARED)
        part.finished.wait()
        if isinstance(self._runner, LocalRunner):
            self._end()
        else:
            self._runner.send_message(FINISHED, self._figures.take(self._ticks))

    def _take_share(self, msg: Any, **_: Any) -> None:
        self._share = Share(msg.data["number"], msg.data["of"])

    def _begin(self, msg: Any = None, **_: Any) -> None:
        if self._part is not None:
            self._part.begin()
        if isinstance(self._runner, LocalRunner):
            self._on_begin()

    def _prepared(self, msg: Any, **_: Any) -> None:
        self._waited_for.discard(msg.node_id)
        if not self._waited_for:
            self._runner.send_message(BEGIN)
            self._on_begin()

    def _finished(self, msg: Any, **_: Any) -> None:
        self._figures.merge(msg.data)
        self._unfinished.discard(msg.node_id)
        if not self._unfinished:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        environment: Environment = self._runner.environment
        if environment.shape_class is None:  # else its next tick ends the test
            options = environment.parsed_options
            ending = self._runner.quit if options is not None and options.headless else self._runner.stop
            gevent.spawn(ending)
