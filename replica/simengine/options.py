"""The command line of `warmroute simengine`, and what it makes of it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from replica.errors import UsageError
from replica.simengine.core.hashing import ALGORITHMS, Adapter
from replica.simengine.core.scheduler import Limits
from replica.simengine.core.timing import Timing
from replica.simengine.faults import NAMES, parse
from replica.simengine.settings import Settings
from replica.simengine.text import Text

_DEFAULT_MODEL_LEN = 32_768
_LAST_PORT = 65_535
_MOST_BLOCKS = 4_194_304
_MOST_RANKS = 256


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=_port, default=0, metavar="P", help="HTTP port; 0: any free one (default 0)")
    port = "of data-parallel rank 0, rank r has the port plus r; 0: any free ones; off: none (default 0)"
    add("--events-port", type=_port_or_off, default=0, metavar="E", help=f"ZMQ port of the KV events {port}")
    add("--replay-port", type=_port_or_off, default=0, metavar="R", help=f"ZMQ port of their replay {port}")
    add("--model", required=True, metavar="NAME", help="root of the model in /v1/models: a name or a path")
    add(
        "--tokenizer",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder with tokenizer.json, tokenizer_config.json, chat_template.jinja",
    )
    add(
        "--served-model-name",
        nargs="+",
        metavar="N",
        help="names it is asked by; the first is in answers (default: NAME)",
    )
    add("--block-size", type=_positive, default=16, metavar="N", help="tokens a KV block (default 16)")
    add(
        "--num-blocks",
        type=_positive,
        default=4096,
        metavar="N",
        help=f"KV blocks a rank, of which one is a placeholder, up to {_MOST_BLOCKS} (default 4096)",
    )
    add(
        "--max-model-len",
        type=_positive,
        metavar="N",
        help="tokens of a sequence, prompt and answer (default: the model's max_position_embeddings, else 32768; "
        "never more than the blocks hold)",
    )
    add("--max-num-seqs", type=_positive, default=256, metavar="N", help="requests that run at once (default 256)")
    add(
        "--max-num-batched-tokens",
        type=_positive,
        default=8192,
        metavar="N",
        help="tokens a step computes at most (default 8192)",
    )
    add(
        "--prefill-tokens-per-s",
        type=_above_zero,
        default=8000.0,
        metavar="X",
        help="prompt tokens computed a virtual second (default 8000)",
    )
    add(
        "--decode-step-s",
        type=_seconds,
        default=0.025,
        metavar="Y",
        help="virtual seconds a step takes beside its prompt tokens (default 0.025)",
    )
    add(
        "--decode-request-s",
        type=_seconds,
        default=0.0,
        metavar="Y",
        help="virtual seconds that each request beside the first adds to a step (default 0)",
    )
    add(
        "--hash-algo",
        choices=ALGORITHMS,
        default="sha256",
        help="hash algorithm of the blocks (default sha256, as vLLM)",
    )
    add(
        "--seed",
        metavar="S",
        help="what the engine would find in PYTHONHASHSEED: root of its hashes, and of its answers (default: unset)",
    )
    add(
        "--time-scale",
        type=_above_zero,
        default=1.0,
        metavar="F",
        help="virtual seconds that pass in a real second: 10 runs ten times as fast as the speeds say (default 1)",
    )
    add(
        "--data-parallel-size",
        type=_positive,
        default=1,
        metavar="N",
        help=f"ranks, each with its own blocks, queue and event sockets, up to {_MOST_RANKS} (default 1)",
    )
    add(
        "--lora",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="serve a LoRA adapter (may be given several times)",
    )
    add(
        "--api-key",
        metavar="K",
        default=os.environ.get("VLLM_API_KEY"),
        help="key that /v1 asks for (default: VLLM_API_KEY of the environment, else none)",
    )
    add(
        "--event-encoding",
        choices=("map", "array"),
        default="map",
        help="form of KV events: map since June 2026, array before (default map)",
    )
    add(
        "--event-hashes",
        choices=("int", "bytes"),
        default="int",
        help="block hashes in events: the last 8 bytes as an unsigned integer, or the whole digest (default int)",
    )
    add("--no-prefix-caching", action="store_true", help="keep nothing, find nothing, announce nothing")
    details = "report usage.prompt_tokens_details.cached_tokens; vLLM is silent without this, here it is on"
    add("--enable-prompt-tokens-details", action=argparse.BooleanOptionalAction, default=True, help=details)
    add(
        "--fault",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"make something go wrong (may be given several times): {', '.join(NAMES)}",
    )


def check(args: argparse.Namespace) -> list[str]:
    """Return all that is wrong with the options, faults but not tokenizer included."""
    problems = []
    room = (args.num_blocks - 1) * args.block_size
    if args.num_blocks < 2:
        problems.append("--num-blocks: at least 2 are needed, one of them is a placeholder")
    if args.num_blocks > _MOST_BLOCKS:
        problems.append(f"--num-blocks: at most {_MOST_BLOCKS} blocks are simulated")
    if args.data_parallel_size > _MOST_RANKS:
        problems.append(f"--data-parallel-size: at most {_MOST_RANKS} ranks are simulated")
    if args.max_model_len is not None and args.max_model_len > room:
        problems.append(
            f"--max-model-len: {args.max_model_len} tokens do not fit {args.num_blocks - 1} blocks of "
            f"{args.block_size}; "
            f"give --num-blocks {-(-args.max_model_len // args.block_size) + 1} or --max-model-len {room}"
        )
    ranks, first, second = args.data_parallel_size, args.events_port, args.replay_port
    if first and second and abs(first - second) < ranks:
        problems.append(
            f"--replay-port: {ranks} ranks need {ranks} ports each; keep it {ranks} away from --events-port"
        )
    for option, port in (("--events-port", first), ("--replay-port", second)):
        if port and port + ranks - 1 > _LAST_PORT:
            problems.append(f"{option}: {ranks} ranks need the ports {port} to {port + ranks - 1}, over {_LAST_PORT}")
    taken = set(args.served_model_name or [args.model])
    for each in args.lora:
        name, _, path = each.partition("=")
        if not name or not path:
            problems.append(f"--lora: {each!r} is not NAME=PATH")
        elif name in taken:
            problems.append(f"--lora: the name {name!r} is taken; give each adapter one of its own")
        taken.add(name)
    try:
        parse(args.fault)
    except UsageError as error:
        problems += error.problems
    return problems


def settings_of(args: argparse.Namespace, text: Text) -> Settings:
    """Return the engine that is asked for by options that `check` has nothing against."""
    room = (args.num_blocks - 1) * args.block_size
    named = [each.partition("=") for each in args.lora]
    adapters = [Adapter(name, path, number) for number, (name, _, path) in enumerate(named, start=1)]
    return Settings(
        model=args.model,
        served=tuple(args.served_model_name or [args.model]),
        tokenizer=args.tokenizer,
        limits=Limits(
            num_blocks=args.num_blocks,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_model_len=args.max_model_len or min(text.model_len or _DEFAULT_MODEL_LEN, room),
            prefix_caching=not args.no_prefix_caching,
        ),
        timing=Timing(args.prefill_tokens_per_s, args.decode_step_s, args.decode_request_s),
        block_size=args.block_size,
        algorithm=args.hash_algo,
        seed=args.seed,
        ranks=args.data_parallel_size,
        adapters=tuple(adapters),
        api_key=args.api_key,
        time_scale=args.time_scale,
        cached_tokens_in_usage=args.enable_prompt_tokens_details,
    )


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to {_LAST_PORT}")
    return value


def _port_or_off(text: str) -> int | None:
    return None if text == "off" else _port(text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value
