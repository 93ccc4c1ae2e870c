"""The same seeded traffic for real engines and simulated ones: what is asked, and what each fleet made of it.

Answers are nonsense, and each engine has its own. So a chat goes on with answers that come from the seed: every prompt
is the same in both fleets, to the token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from loadtest.workloads.conversations import ChatShape, DocumentShape, Mix, Session, SingleShape, Workload
from loadtest.workloads.text import TextMaker, load_tokenizer
from router.tools.local_fleet import EngineOptions, LocalFleet
from tests.vllm.engines import BLOCK_SIZE, MODEL, TOKENIZER, call
from tests.vllm.real_fleet import RealFleet

CHAT = "/v1/chat/completions"
STEP_TOKENS = 2_048
ENGINE_OPTIONS = ("--max-num-batched-tokens", str(STEP_TOKENS))
"""Of the real engines; simulated ones get the same."""
ROUTER = {"placement": {"ramp_s": 0.0}}
"""Of both routers: how long ago a replica joined is no part of this."""
LIVE = 24
"""Sessions that go on at once where requests come one after the other."""
_PAUSE_S = (0.0, 0.0)
_MIX = Mix(
    chat_shape=ChatShape(turns=(3, 5), user_tokens=(16, 96), answer_tokens=(2, 12), think_s=_PAUSE_S),
    document_shape=DocumentShape(
        window=8, documents=2, document_tokens=(200, 500), answer_tokens=(2, 12), think_s=_PAUSE_S
    ),
    single_shape=SingleShape(prompt_tokens=(60, 300), answer_tokens=(2, 12)),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    messages: tuple[dict[str, str], ...]
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a fleet made of it, in tokens."""

    replica: str
    prompt_tokens: int
    cached_tokens: int


def sessions(seed: int) -> Iterator[list[Asked]]:
    """Yield sessions without end."""
    maker = TextMaker(load_tokenizer(TOKENIZER))
    workload = Workload(_MIX, maker, seed)
    number = 0
    while True:
        yield _requests(workload.session(number), maker, random.Random(f"{seed}/answers/{number}"))
        number += 1


def _requests(session: Session, maker: TextMaker, rng: random.Random) -> list[Asked]:
    answers = [maker.make(turn.answer_tokens, rng) for turn in session.turns]
    before = answers if session.remembers else []
    return [
        Asked(tuple(session.messages(number, before[:number])), turn.answer_tokens)
        for number, turn in enumerate(session.turns)
    ]


def one_by_one(seed: int, requests: int) -> list[Asked]:
    """Return requests in an order: of some sessions that are under way, any goes on."""
    rng, more = random.Random(f"{seed}/order"), sessions(seed)
    live = [next(more) for _ in range(LIVE)]
    asked: list[Asked] = []
    while len(asked) < requests:
        place = rng.randrange(LIVE)
        asked.append(live[place].pop(0))
        if not live[place]:
            live[place] = next(more)
    return asked


def side_by_side(seed: int, users: int, each: int) -> list[list[Asked]]:
    """Return what each of some users asks, whole sessions one after the other."""
    more = sessions(seed)
    lanes: list[list[Asked]] = [[] for _ in range(users)]
    while any(len(lane) < each for lane in lanes):
        min(lanes, key=len).extend(next(more))
    return lanes


def ask(fleet: RealFleet, asked: Asked, *, settle: bool) -> Told:
    """Send one request; with `settle`, wait until the router knows all that it left."""
    body = {"messages": list(asked.messages), "max_tokens": asked.answer_tokens, "ignore_eos": True}
    answer = fleet.ask(CHAT, body)
    if settle:
        fleet.settled(answer)
    return Told(answer.replica, answer.prompt_tokens, answer.cached)


def tell(fleet: RealFleet, lanes: Sequence[Sequence[Asked]]) -> list[Told]:
    """Send all lanes at once."""
    with ThreadPoolExecutor(len(lanes)) as users:
        told = users.map(lambda lane: [ask(fleet, asked, settle=False) for asked in lane], lanes)
        return [each for lane in told for each in lane]


def reset(fleet: RealFleet) -> None:
    """Empty every cache. Routers hear of it with the next request's step, so one goes to each engine."""
    for name, url in fleet.engines.items():
        assert call(url, "POST", "/reset_prefix_cache").status == 200
        fleet.ask_engine(name, "/v1/completions", {"model": MODEL, "prompt": [301] * BLOCK_SIZE, "max_tokens": 1})
    for name in fleet.engines:
        fleet.until(f"the router has forgotten {name}'s blocks", lambda name=name: known_blocks(fleet, name) <= 1)


def known_blocks(fleet: RealFleet, name: str) -> int:
    """How many blocks the router knows of a replica."""
    return sum(int(unit["blocks"]) for unit in fleet.replica(name)["units"])


@contextmanager
def simulated_fleet(
    num_blocks: int, prefill_tokens_per_s: float, decode_step_s: float, *more: str
) -> Iterator[RealFleet]:
    """Two simulated replicas with agents and a router: as the real ones, but for the engines."""
    engine = EngineOptions(
        model=MODEL,
        tokenizer=TOKENIZER,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=16,
        max_num_batched_tokens=STEP_TOKENS,
        prefill_tokens_per_s=prefill_tokens_per_s,
        decode_step_s=decode_step_s,
        extra=("--hash-algo", "sha256_cbor", *more),
    )
    with LocalFleet(engine, replicas=2, router=ROUTER) as local:
        fleet = RealFleet(local.folder, local.redis_url)
        fleet.engines = {f"r{number}": server.http for number, server in enumerate(local.engines)}
        fleet.children = {"router": local.router.child}
        fleet.router = fleet.admin = local.router.http
        yield fleet
