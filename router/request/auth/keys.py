"""API keys: what a request's head gives, and the table that it is looked up in.

A key is a random token, so its SHA-256 is all that is kept of it, and nobody finds one by trying. The table is looked
up by a keyed hash of that hash, whose key only this process knows: what the lookup's time may tell is of no use to
anyone. What it finds is compared in constant time all the same.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from router.errors import InvalidApiKeyError

AUTHORIZATION = b"authorization"
KEY_HEADERS = frozenset((AUTHORIZATION, b"x-api-key", b"api-key"))
"""Headers that carry clients' keys: OpenAI's, Anthropic's, Azure's. None of a tenant's reaches an engine."""
_BEARER = b"bearer"

Owner = TypeVar("Owner")


def given_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the one key that a head gives, as the bytes that were sent: it may hold any.

    Raises:
        InvalidApiKeyError: There is none, or more than one.
    """
    found: set[bytes] = set()
    for name, value in headers:
        lower = name.lower()
        if lower not in KEY_HEADERS:
            continue
        if lower == AUTHORIZATION:
            scheme, _, value = value.partition(b" ")
            if scheme.lower() != _BEARER:
                raise InvalidApiKeyError("send the API key as `Authorization: Bearer KEY`")
        found.add(value.strip(b" \t"))
    found.discard(b"")
    if not found:
        raise InvalidApiKeyError("an API key is needed: send it as `Authorization: Bearer KEY`")
    if len(found) > 1:
        raise InvalidApiKeyError("the request gives more than one API key")
    return found.pop()


class KeyTable(Generic[Owner]):
    """Owners by the hashes of their keys.

    Args:
        owners: From the SHA-256 of a key, as hex, to its owner.
        blinding: Random bytes of this process, up to 64.
    """

    def __init__(self, owners: Mapping[str, Owner], blinding: bytes) -> None:
        self._blinding = blinding
        digests = [(bytes.fromhex(text), owner) for text, owner in owners.items()]
        self._owners = {self._blinded(digest): (digest, owner) for digest, owner in digests}

    def owner(self, key: bytes) -> Owner:
        """Return whose key this is.

        Raises:
            InvalidApiKeyError: Nobody's. The error does not repeat it.
        """
        digest = hashlib.sha256(key).digest()
        kept, owner = self._owners.get(self._blinded(digest), (b"", None))
        if not hmac.compare_digest(kept, digest) or owner is None:
            raise InvalidApiKeyError("the API key is not known here")
        return owner

    def _blinded(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._blinding, digest_size=16).digest()
