"""What is kept of a prompt so that `warmroute doctor --traffic` can tell why prompts share less than they could.

Never text nor token ids: the hashes of its first blocks, and hashes under a key that is drawn when the router starts
and never leaves it. Off unless `admin.traces` is set, since it costs some milliseconds a request.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from router.request.prompt import Prompt

MAX_BLOCKS = 256
MAX_STEPS = 1_024
MAX_PASSAGES = 64
PASSAGE_TOKENS = 8
PASSAGE_WITHIN_TOKENS = 2_048
_NEAR = 6
"""A passage begins where the key's value of a token is the least of so many on each side: about each 13th token."""


class Tracer:
    """Makes traces. All traces of one tracer can be compared with one another, and with no other's.

    Args:
        key: 16 to 64 bytes; None draws one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._odd = int.from_bytes(self._hash(b"odd", 8), "big") | 1

    def trace(self, prompt: Prompt, chain: Sequence[int], block_size: int) -> dict[str, Any] | None:
        """Return a prompt's trace for JSON, at most 6 KB; None where its tokens are not known.

        The fields: `block_size`; `blocks`, the first 256 hashes (base64 of big-endian 64-bit numbers); `steps`, a byte
        for each of the first 1,024 tokens that depends on it and all before it (base64), so that two prompts' steps are
        equal as far as their tokens are, and by chance (1 in 256) one further; `passages`, place and hash of up to
        64 runs of 8 tokens that begin where the key and the tokens nearby choose, so that equal text is found where
        it stands elsewhere, too; `salt`, a hash of the cache salt or null; `reads_cache`.
        """
        ids = prompt.token_ids
        if ids is None:
            return None
        return {
            "block_size": block_size,
            "blocks": _base64(_big_endian(chain[:MAX_BLOCKS])),
            "steps": _base64(self._steps(ids[:MAX_STEPS])),
            "passages": self.passages(ids),
            "salt": None
            if prompt.salt is None
            else self._hash(b"salt" + prompt.salt.encode(errors="replace"), 4).hex(),
            "reads_cache": prompt.reads_cache,
        }

    def passages(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return position and hash of distinct runs of tokens, each where it stands first, in order of position."""
        odd = self._odd
        values = [token * odd >> 16 & 0xFFFFFF for token in ids[:PASSAGE_WITHIN_TOKENS]]
        ends = len(values) - max(_NEAR, PASSAGE_TOKENS - 1)
        begins = [at for at in range(_NEAR, ends) if values[at] == min(values[at - _NEAR : at + _NEAR + 1])]
        found: dict[int, int] = {}
        for place in begins[:MAX_PASSAGES]:
            run = _big_endian(ids[place : place + PASSAGE_TOKENS])
            found.setdefault(int.from_bytes(self._hash(run, 6), "big"), place)
        return [(place, run_hash) for run_hash, place in found.items()]

    def _steps(self, ids: Sequence[int]) -> bytes:
        key, blake2b = self._key, hashlib.blake2b

        def follow(state: bytes, token: int) -> bytes:
            return blake2b(state + token.to_bytes(8, "big"), key=key, digest_size=16).digest()

        states = accumulate(ids, follow, initial=b"")
        next(states)
        return bytes([state[0] for state in states])

    def _hash(self, data: bytes, size: int) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=size, person=b"passage").digest()


def _big_endian(values: Sequence[int]) -> bytes:
    numbers = array("Q", values)
    numbers.byteswap()  # the machines that this runs on are little-endian
    return numbers.tobytes()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
