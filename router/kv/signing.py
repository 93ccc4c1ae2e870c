"""What is signed in Redis: JSON `{"payload": "<JSON text>", "signature": "<hex>"}`.

The signature is HMAC-SHA256 over a context, which tells apart what is signed for different ends, and the payload's
exact bytes, so nothing depends on how JSON is spelled. Without a secret on either side there is no signature; with a
secret on the reader's side, what is unsigned is refused.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec


class SealError(ValueError):
    """The bytes are not believed; `str(error)` is the reason, to be put behind what they should have been."""


class _Envelope(msgspec.Struct):
    payload: str
    signature: str | None = None


def seal(payload: bytes, secret: bytes | None, context: bytes) -> bytes:
    """Return the bytes to write, signed where a secret is given."""
    signature = _signature(payload, secret, context) if secret else None
    return msgspec.json.encode(_Envelope(payload.decode(), signature))


def unseal(data: bytes, secret: bytes | None, context: bytes) -> bytes:
    """Return the payload, once its signature holds.

    Raises:
        SealError: With the reason.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        payload = envelope.payload.encode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SealError("is malformed") from error
    if secret:
        if envelope.signature is None:
            raise SealError("is not signed, and registration.secret is set")
        expected = _signature(payload, secret, context).encode()
        if not hmac.compare_digest(expected, envelope.signature.encode(errors="replace")):
            raise SealError("has a signature that does not match registration.secret")
    return payload


def _signature(payload: bytes, secret: bytes, context: bytes) -> str:
    return hmac.new(secret, context + payload, hashlib.sha256).hexdigest()
