"""Memory, file descriptors and Redis' keys, look by look.

A look is taken while nothing runs, and a process is judged by all looks at one life of it. The first third is left out:
caches fill then. What is left is compared by medians of its halves, so that no single look decides.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

GROWTH_BYTES = 24 * 2**20
"""What the allocator holds at one look or another differs by some MiB; the longer the run, the smaller the leak that
shows: in an hour 0.3 KiB a request."""
FILES = 12
"""Descriptors over the first look that counts: connections that are kept to one replica more, or not closed yet."""
KEYS = 40
"""Keys of one replica more, and of snapshots that are not expired yet."""
LEAST_LOOKS = 4
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process.

    Attributes:
        requests: That were answered in all until then.
        rss_bytes: Resident memory.
        files: Open file descriptors.
    """

    requests: int
    rss_bytes: int
    files: int


def sample(pid: int, requests: int) -> Sample | None:
    """Look at a process, and at those that it started; None where it is gone."""
    with contextlib.suppress(OSError, ValueError):
        rss_bytes = files = 0
        for each in (pid, *_children(pid)):
            rss_bytes += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * _PAGE_BYTES
            files += sum(1 for _ in Path(f"/proc/{each}/fd").iterdir())
        return Sample(requests, rss_bytes, files)
    return None


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@dataclass(slots=True)
class Lives:
    """All samples, by process and life.

    Attributes:
        samples: By name and process id.
        keys: Of Redis, at each look.
    """

    samples: dict[tuple[str, int], list[Sample]] = field(default_factory=lambda: defaultdict(list))
    keys: list[int] = field(default_factory=list)

    def files_allowed(self, name: str, pid: int) -> int | None:
        """Return how many descriptors the process may have; None before that is known."""
        counted = self.samples.get((name, pid), [])
        return counted[1].files + FILES if len(counted) > 1 else None

    def problems(self) -> list[str]:
        """Return what has leaked, in words."""
        found = []
        for (name, _), samples in self.samples.items():
            growth_bytes = growth([each.rss_bytes for each in samples])
            if growth_bytes > GROWTH_BYTES:
                requests = samples[-1].requests - samples[0].requests
                found.append(
                    f"{name}: its memory grew by {growth_bytes / 2**20:.0f} MiB in the last two thirds of "
                    f"{len(samples)} looks ({requests:,} requests); {GROWTH_BYTES / 2**20:.0f} are allowed"
                )
            files = growth([each.files for each in samples])
            if files > FILES:
                found.append(f"{name}: its open files grew by {files:.0f}; {FILES} are allowed")
        if growth(self.keys) > KEYS:
            found.append(f"Redis: its keys grew by {growth(self.keys):.0f}; {KEYS} are allowed")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return each life's first and last look, and what it grew by; those that lived for few looks are left out."""
        lives = {}
        for (name, pid), samples in self.samples.items():
            if len(samples) < LEAST_LOOKS:
                continue
            lives[f"{name}/{pid}"] = {
                "looks": len(samples),
                "rss_mib": [round(each.rss_bytes / 2**20, 1) for each in (samples[0], samples[-1])],
                "grew_mib": round(growth([each.rss_bytes for each in samples]) / 2**20, 1),
                "files": [samples[0].files, samples[-1].files],
            }
        return {"lives": lives, "redis_keys": [self.keys[0], self.keys[-1]] if self.keys else []}


def growth(values: Sequence[float]) -> float:
    """Return by how much the median of the last third lies above that of the middle third, and 0 with few values."""
    if len(values) < LEAST_LOOKS:
        return 0.0
    counted = values[len(values) // 3 :]
    half = len(counted) // 2
    return max(0.0, median(counted[-half:]) - median(counted[:half]))
