"""A running system: an OpenAI endpoint, any router's or engine's."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadtest.driver.holding import Sending
from loadtest.report.runs import Run, ledger_parts
from loadtest.workloads.traffic import Traffic
from router.tools.load.sending import send


def run_target(
    url: str,
    tokenizer: Path,
    block_size: int,
    traffics: Sequence[Traffic],
    sending: Sending,
    sources: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[Run]:
    """Send each traffic to it, one after the other; its ledger is read where it shows one."""
    place = urlsplit(url)
    for traffic in traffics:
        say(f"{traffic.workload}: making its prompts")
        lanes = traffic.lanes(tokenizer)
        before = _ledger(url)
        sent = send(url, sending, traffic.stages, lanes, sources)
        run = Run(
            workload=traffic.workload,
            policy=f"{place.hostname}:{place.port or place.scheme}",
            records=sent.driver.measured,
            generator=sent.driver.generator(),
            block_size=block_size,
            stages=traffic.stages,
            ledger=ledger_parts(before, _ledger(url)),
            scrapes=sent.scrapes,
        )
        say(f"{traffic.workload}: {len(run.records):,} requests; {run.generator.sentence()}")
        yield run


def _ledger(url: str) -> dict[str, Any] | None:
    """Return what Warmroute's admin tells at the same port; None where it is no Warmroute, or admin is elsewhere."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/admin/ledger", timeout=5) as response:  # noqa: S310
            told = json.load(response)
    except (urllib.error.URLError, ValueError, OSError):
        return None
    return told if isinstance(told, dict) else None
