"""`python -m router.tools.gpu`: `cost` against round robin over real engines, and their latency model.

Skips, with a reason and exit code 0, where there is no GPU or no vLLM; else the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from loadtest.calibrate.__main__ import calibrate, options, show
from loadtest.driver.holding import Sending
from loadtest.driver.records import Record
from loadtest.workloads.callers import Callers
from loadtest.workloads.traffic import Traffic
from router.tools.gpu.engines import MODEL, STEP_TOKENS, Device, Machine
from router.tools.gpu.fleet import EngineFleet
from router.tools.load.sending import send
from router.tools.processes import StartError
from router.tools.scratch import Scratch

POLICIES = ("round-robin", "cost")
FAILED, INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when `cost` hits more than round robin and no request failed, or when it was skipped; else 1."""
    args = _options().parse_args(arguments)
    found = Machine(tuple(args.python)).find(args.device)
    if found.device is None:
        print(f"skipped: {found.reason}")
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    scratch = Scratch()
    folder = args.logs or scratch.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _report(_run(found.device, args, folder))
    except (StartError, OSError, ValueError) as error:
        print(f"make test-gpu can't go on: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        scratch.remove()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    add = parser.add_argument
    add(
        "--device",
        choices=("gpu", "cpu", "simulated"),
        default="gpu",
        help="where engines run: on GPUs (default), on vLLM's CPU build (blocks of 32), or simulated, to try this out",
    )
    add(
        "--python",
        nargs="+",
        default=[sys.executable, ".venv-vllm/bin/python", "python3"],
        help="where vLLM is looked for (default: here, in .venv-vllm, and as python3)",
    )
    add("--replicas", type=int, default=2, help="engines; several share a GPU where there is only one (default 2)")
    add("--rate-scale", type=float, default=1.0, help="times the arrivals of the workload (default 1)")
    add("--workload", default="mixed", help="of loadtest/workloads/presets.py (default mixed)")
    add("--batches", default="1,2,4,8", help="requests that run together, for the latency model (default 1,2,4,8)")
    add("--repeats", type=int, default=5, help="of each measurement of the latency model (default 5)")
    add("--logs", type=Path, help="folder for what every process writes (default: a temporary one)")
    return parser


def _run(device: Device, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    seed = secrets.randbelow(1_000_000)
    with EngineFleet(device, folder, args.replicas) as fleet:
        words = [fleet.engines[0], "--model", MODEL, "--step-tokens", str(STEP_TOKENS), "--seed", str(seed)]
        asked = options().parse_args([*words, "--repeats", str(args.repeats), "--batches", args.batches])
        model, errors = asyncio.run(calibrate(asked))
        show(model, errors)
        traffic = Traffic(args.workload, seed, args.rate_scale)
        sending = Sending(Callers((MODEL,)), time_scale=device.time_scale)
        rows = []
        for policy in POLICIES:
            lanes = traffic.lanes(fleet.model)
            with fleet.router(policy) as url:
                records = send(url, sending, traffic.stages, lanes).driver.records
            rows.append(_row(policy, records))
            print(_in_words(rows[-1]), flush=True)
    held_out = {each.name: each.share for each in errors}
    return {"device": device.name, "seed": seed, "rows": rows, "model": model.to_dict(), "model_error_share": held_out}


def _row(policy: str, records: Sequence[Record]) -> dict[str, Any]:
    whole = [record for record in records if record.cause is None]
    prompt_tokens = sum(record.prompt_tokens or 0 for record in whole)
    ttfts_s = [record.ttft_s for record in whole if record.ttft_s is not None]
    return {
        "policy": policy,
        "requests": len(records),
        "failed": len(records) - len(whole),
        "hit_rate": sum(record.cached_tokens or 0 for record in whole) / prompt_tokens if prompt_tokens else 0.0,
        "ttft_p50_s": median(ttfts_s) if ttfts_s else None,
    }


def _in_words(row: dict[str, Any]) -> str:
    ttft = "-" if row["ttft_p50_s"] is None else f"{row['ttft_p50_s'] * 1000:.1f} ms"
    told = f"hit rate {row['hit_rate']:.1%}, TTFT p50 {ttft}"
    return f"{row['policy']:<12} {told}, {row['requests']} requests, {row['failed']} failed"


def _report(result: dict[str, Any]) -> int:
    round_robin, cost = result["rows"]
    passed = cost["hit_rate"] > round_robin["hit_rate"] and not cost["failed"] and not round_robin["failed"]
    print(json.dumps({"passed": passed, **result}), flush=True)
    return 0 if passed else FAILED


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
