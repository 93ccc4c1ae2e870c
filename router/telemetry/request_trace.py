"""`record`: a trace of the traffic that `warmroute simulate` reads, without anything that it was about.

One JSON object a line, in Mooncake's format: when a request came, its lengths, and names of its blocks. A name is a
digest of the block's hash under a key that is drawn at the start and never leaves the process: equal beginnings have
equal names within one file, and nothing else can be learned of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from router.errors import ConfigurationError, Problem
from router.placement import Placement
from router.scheduling.decision import Outcome
from router.telemetry.line_writer import LineWriter

LEAST_BLOCK_TOKENS = 64
"""Blocks of a trace are at least this long; an engine's smaller ones are taken together."""
MAX_FILE_BYTES = 2**30
"""Recording ends there."""
NAME_BYTES = 6
"""JSON's numbers are exact up to 53 bits. Of a million blocks two have one name by chance once in 560 traces."""

_log = logging.getLogger("warmroute.record")


class RequestTrace:
    """Writes requests that were answered.

    Args:
        path: For its owner alone. A file that is there keeps its content under a name with the time of its last line.
        clock: Of times, in seconds.

    Raises:
        ConfigurationError: The file can't be made.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        try:
            if path.is_file() and path.stat().st_size:
                path.rename(path.with_name(f"{path.name}.{int(path.stat().st_mtime)}"))
            path.touch(mode=0o600)
            self._file = path.open("w", encoding="ascii")
        except OSError as error:
            raise ConfigurationError(
                [Problem("record", f"{path}: {error.strerror}", "a file in a folder that can be written")]
            ) from None
        self._clock = clock
        self._begun_s = clock()
        self._key = secrets.token_bytes(32)
        self._bytes = 0
        self._unknown = 0
        self.writer = LineWriter("record", self._put)

    def write(self, placement: Placement, outcome: Outcome) -> None:
        """Add a request that ended. One that was not understood has blocks that no other has."""
        unit, decision = placement.unit, placement.decision
        size = unit.scheme.block_size if unit.scheme is not None else LEAST_BLOCK_TOKENS
        together = max(1, LEAST_BLOCK_TOKENS // size)
        tokens = max(1, outcome.prompt_tokens or decision.prompt_tokens)
        names = self._names(placement.chain[together - 1 :: together])
        blocks = -(-tokens // (size * together))
        while len(names) < blocks:
            names.append(self._unknown_name())
        arrived_s = self._clock() - outcome.total_s
        line = {
            "timestamp": max(0, round((arrived_s - self._begun_s) * 1_000)),
            "input_length": tokens,
            "output_length": outcome.completion_tokens or 1,
            "block_tokens": size * together,
            "hash_ids": names[:blocks],
        }
        self.writer.add(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Write all that waits. May block: not for the loop."""
        self.writer.close()
        self._file.close()

    def _names(self, hashes: Sequence[int]) -> list[int]:
        key, blake2b = self._key, hashlib.blake2b
        return [
            int.from_bytes(blake2b(block.to_bytes(8, "big"), key=key, digest_size=NAME_BYTES).digest(), "big")
            for block in hashes
        ]

    def _unknown_name(self) -> int:
        self._unknown += 1
        name = hashlib.blake2b(b"unknown %d" % self._unknown, key=self._key, digest_size=NAME_BYTES).digest()
        return int.from_bytes(name, "big")

    def _put(self, text: str) -> None:
        if self._bytes + len(text) > MAX_FILE_BYTES:
            _log.warning("%s has reached %d bytes: recording ends", self._path, self._bytes)
            raise ValueError("full")
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            _log.warning("recording to %s ends: %s", self._path, error.strerror)
            raise
        self._bytes += len(text)
