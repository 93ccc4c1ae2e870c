"""Measures a running engine and prints the latency model for `warmroute simengine` and `warmroute simulate`.

Alone on an idle engine: what else it does is measured too. Takes half a minute on a GPU, some minutes elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp

from loadtest.calibrate.measure import TIMEOUT_S, Asker, AskError, decode, held_out, prefill, traffic
from loadtest.calibrate.model import Model, model_of
from loadtest.calibrate.predict import Error, errors, predict

FAILED = 1
USERS, EACH = 4, 8


def options() -> argparse.ArgumentParser:
    """Declare the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.calibrate", description=__doc__)
    add = parser.add_argument
    add("url", metavar="URL", help="of the engine itself, no router, as http://127.0.0.1:8000")
    add("--model", required=True, help="name to ask for")
    add("--most-tokens", type=_whole, default=2_048, help="of the longest prompt (default: %(default)s)")
    add(
        "--step-tokens", type=_whole, default=2_048, help="the engine's --max-num-batched-tokens (default: %(default)s)"
    )
    add("--batches", type=_wholes, default=(1, 2, 4, 8), help="requests that run together (default: 1,2,4,8)")
    add("--repeats", type=_whole, default=5, help="of each measurement, whose median counts (default: %(default)s)")
    add("--seed", type=int, help="of all prompts; one that was used before finds them cached (default: a fresh one)")
    add("--json", action="store_true", help="last line: all as one JSON object")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 when the engine does not answer or its times make no sense, 2 for wrong usage."""
    parser = options()
    args = parser.parse_args(arguments)
    if 1 not in args.batches or len(set(args.batches)) < 2:
        parser.error("--batches: 1 and at least one more")
    if args.most_tokens < 128:
        parser.error("--most-tokens: at least 128")
    if args.seed is None:
        args.seed = secrets.randbelow(1_000_000)
    try:
        model, found = asyncio.run(calibrate(args))
    except (AskError, ValueError) as error:
        print(f"can't calibrate: {error}", file=sys.stderr)
        return FAILED
    show(model, found)
    if args.json:
        print(json.dumps({**model.to_dict(), "held_out": [_row(each) for each in found]}))
    return 0


async def calibrate(args: argparse.Namespace) -> tuple[Model, list[Error]]:
    """Measure, fit, and hold the model against other traffic.

    Raises:
        AskError: The engine did not answer.
        ValueError: Nothing follows from its times.
    """
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        asker = Asker(session, args.url, args.model, args.seed, os.environ.get("OPENAI_API_KEY"))
        lengths = [args.most_tokens // part for part in (16, 8, 4, 2, 1)]
        _say(f"measuring prompts of {lengths[0]:,} to {lengths[-1]:,} tokens")
        ttfts_s = await prefill(asker, lengths, args.repeats)
        _say(f"measuring answers, {', '.join(map(str, args.batches))} at once")
        steps_s = await decode(asker, args.batches, args.repeats)
        model = model_of(ttfts_s, steps_s)
        asked = traffic(USERS, EACH, args.most_tokens, args.seed)
        measured = await held_out(asker, asked, _say)
    return model, errors(measured, predict(model, asked, args.step_tokens))


def show(model: Model, found: Sequence[Error]) -> None:
    """Print it."""
    off = f"fit off by {model.prefill_mean_error:.1%} on average, {model.prefill_worst_error:.1%} at worst"
    print(f"prefill    {model.prefill_tokens_per_s:,.0f} tokens/s ({off})")
    more = f"{model.decode_request_s * 1000:.2f} ms more for each further request in the batch"
    print(f"decode     {model.decode_step_s * 1000:.2f} ms a step alone, {more} (off by {model.decode_mean_error:.1%})")
    print(f"request    {model.request_s * 1000:.2f} ms around its steps (HTTP, tokenising), which simulators leave out")
    print("held against traffic that it was not fitted to:")
    for each in found:
        measured, predicted = f"{each.measured_s * 1000:,.1f} ms", f"{each.predicted_s * 1000:,.1f} ms"
        print(f"  {each.name:<22} {measured:>12} measured {predicted:>12} predicted {each.share:>+7.1%}")
    print(f"warmroute simengine {model.options()} ...")
    print(f"warmroute simulate --engine batched {model.options()} ...", flush=True)


def _row(error: Error) -> dict[str, Any]:
    return {
        "measure": error.name,
        "measured_s": error.measured_s,
        "predicted_s": error.predicted_s,
        "error_share": error.share,
    }


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(","))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
