"""Load on any OpenAI chat endpoint, with time to first token and hit rate as figures of their own.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --model tiny -u 40 -r 20 -t 1m --headless

Rows of the statistics, a name for each kind of session (chat, document, single):

- POST  a whole answer, in ms
- TTFT  from sending to the first generated token, in ms
- ITL   between the pieces of an answer, its mean, in ms
- HIT%  share of the prompt that the engine had cached, 0 to 100 (its mean is over requests; the hit rate at the end is
        over tokens)
- MATCH% the same as the router expected it, where it says so (x-warmroute-matched-tokens)
- REPLICA whole answers by the replica that gave them, where the router names it, in ms
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser

from loadtest.driver.client import MATCHED_HEADER, PATH, REPLICA_HEADER
from loadtest.reuse import ReuseTotals
from loadtest.workloads.answers import StreamedAnswer, chat_body
from loadtest.workloads.conversations import MIXES, Session, Workload
from loadtest.workloads.text import TextMaker, load_tokenizer, tokenizer_folder

SESSIONS_PER_WORKER = 1_000_000
"""Workers take sessions far apart; documents are then shared within a worker, system prompts by all."""
REPORT_KEY = "warmroute_reuse"

totals = ReuseTotals()
unreported = ReuseTotals()


def add_options(parser: LocustArgumentParser) -> None:
    """Declare our options beside locust's."""
    group = parser.add_argument_group("Prefix reuse")
    group.add_argument("--model", default="tiny", env_var="LOCUST_MODEL", help="model to ask for (default: tiny)")
    group.add_argument(
        "--tokenizer",
        default=str(tokenizer_folder()),
        env_var="LOCUST_TOKENIZER",
        help="folder with the model's tokenizer.json, for exact prompt lengths (default: the small one shipped here)",
    )
    group.add_argument(
        "--workload",
        choices=sorted(MIXES),
        default="mixed",
        env_var="LOCUST_WORKLOAD",
        help="what users say (default: mixed)",
    )
    group.add_argument(
        "--workload-seed", type=int, default=1, env_var="LOCUST_WORKLOAD_SEED", help="seed of all texts (default: 1)"
    )


def prepare(environment: Environment, **_: Any) -> None:
    """Make the workload once for all users of this process."""
    options = environment.parsed_options
    if options is None:
        return
    maker = TextMaker(load_tokenizer(Path(options.tokenizer)))
    OpenAIUser.workload = Workload(MIXES[options.workload], maker, options.workload_seed)
    OpenAIUser.model = options.model


def report(client_id: str, data: dict[str, Any]) -> None:
    """Send what a worker counted since its last report."""
    data[REPORT_KEY] = unreported.take()


def take_report(client_id: str, data: dict[str, Any]) -> None:
    """Add a worker's counts to the master's."""
    if REPORT_KEY in data:
        totals.merge(data[REPORT_KEY])


def tell_hit_rate(environment: Environment, **_: Any) -> None:
    """Print the hit rate as the last figure of the run; workers leave that to their master."""
    options = environment.parsed_options
    if options is None or not options.worker:
        print(totals.sentence(), flush=True)


class OpenAIUser(FastHttpUser):
    """One user: takes the next session and holds it, turn by turn, with its pauses."""

    workload: Workload
    model: str
    taken = 0
    """Sessions that users of this process have taken so far."""

    def on_start(self) -> None:
        """Find the credentials: OPENAI_API_KEY, when set, is sent as bearer token."""
        key = os.environ.get("OPENAI_API_KEY")
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {key}"} if key else {})

    @task
    def hold_session(self) -> None:
        """Hold one session; a failed turn ends it, as the rest would build on an answer that never came."""
        session = self._next_session()
        answers: list[str] = []
        for number, turn in enumerate(session.turns):
            gevent.sleep(turn.think_s)
            messages = session.messages(number, answers if session.remembers else [])
            answer = self._ask(session, chat_body(self.model, messages, turn.answer_tokens))
            if answer is None:
                return
            answers.append(answer.text)

    def _next_session(self) -> Session:
        runner = self.environment.runner
        if runner is None:
            raise StopUser
        index = max(0, getattr(runner, "worker_index", 0)) * SESSIONS_PER_WORKER + OpenAIUser.taken
        OpenAIUser.taken += 1
        return self.workload.session(index)

    def _ask(self, session: Session, body: dict[str, Any]) -> StreamedAnswer | None:
        """Send one request and read its stream; None when it failed."""
        answer = StreamedAnswer()
        pieces_s: list[float] = []
        started_s = time.perf_counter()
        with self.client.post(
            PATH, json=body, name=session.kind, headers=self._headers, stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"HTTP {response.status_code}")
                return None
            while line := response._response.readline(b"\n"):
                if answer.feed(bytes(line)):
                    pieces_s.append(time.perf_counter() - started_s)
            total_s = time.perf_counter() - started_s
            replica, matched = (response.headers.get(name, "") for name in (REPLICA_HEADER, MATCHED_HEADER))
            # Locust's own figure for a stream ends with the headers.
            response.request_meta["response_time"] = total_s * 1000
            response.request_meta["response_length"] = len(answer.text)
            if answer.error or not answer.done:
                response.failure(answer.error or "the stream ended early")
                return None
        self._record(session.kind, answer, pieces_s)
        if answer.prompt_tokens and matched.isdigit():
            self._row("MATCH%", session.kind, 100 * int(matched) / answer.prompt_tokens)
        if replica:
            self._row("REPLICA", replica, total_s * 1000)
        return answer

    def _record(self, kind: str, answer: StreamedAnswer, pieces_s: list[float]) -> None:
        for counts in (totals, unreported):
            counts.add(answer.prompt_tokens, answer.cached_tokens)
        if pieces_s:
            self._row("TTFT", kind, pieces_s[0] * 1000)
        if len(pieces_s) > 1:
            self._row("ITL", kind, (pieces_s[-1] - pieces_s[0]) / (len(pieces_s) - 1) * 1000)
        if answer.prompt_tokens and answer.cached_tokens is not None:
            self._row("HIT%", kind, 100 * answer.cached_tokens / answer.prompt_tokens)

    def _row(self, row: str, name: str, value: float) -> None:
        self.environment.events.request.fire(
            request_type=row,
            name=name,
            response_time=value,
            response_length=0,
            exception=None,
            context={},
        )


for _hook, _listener in (
    (events.init_command_line_parser, add_options),
    (events.init, prepare),
    (events.report_to_master, report),
    (events.worker_report, take_report),
    (events.quitting, tell_hit_rate),
):
    _hook.add_listener(_listener)  # type: ignore[no-untyped-call]
