"""Which requests can carry a cache salt, and the body with it.

The salt is the body's last key, written before its closing brace; nothing else of the body changes. Engines parse with
Python's `json`, for which the last of equal keys holds (`tests/vllm` proves it on the real one), so whatever a client
wrote before does not count. What two parsers might read differently is refused instead: a body that is not plain UTF-8
(byte order mark, UTF-16, UTF-32, NUL), that is no JSON object to its last byte, or that gives `cache_salt` twice or
spelled with escapes.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

import orjson

from router.errors import AmbiguousBodyError, CacheSaltRefusedError, IsolationUnsupportedError
from router.request.auth.tenants import Tenant
from router.request.auth.top_level import spelled_keys
from router.request.endpoints import ENDPOINTS, Shape

FIELD = "cache_salt"
_SPELLED = b'"cache_salt"'
_MAX_SALT_CHARACTERS = 128
_NOT_IN_SALT = frozenset("@/\\\0")
"""What vLLM refuses in a salt (`validate_cache_salt`)."""
_COMPUTES_NOTHING = frozenset(("/v1/models", "/version"))
_STATE_FIELDS = {
    "previous_response_id": "it continues a response that the engine keeps for everyone",
    "kv_transfer_params": "it names blocks of other requests",
}
"""Fields by which a request reads what others left, whatever its salt."""


def carries_salt(path: str) -> bool:
    """Tell whether requests to a path need the salt; False: the engine computes nothing for them.

    From vLLM 0.32: chats, completions, responses, messages and all pooling endpoints take `cache_salt`; audio does not.

    Raises:
        IsolationUnsupportedError: The path can't carry it, or is not known.
    """
    endpoint = ENDPOINTS.get(path)
    if path in _COMPUTES_NOTHING or (endpoint is not None and endpoint.shape is Shape.NONE):
        return False
    if endpoint is None or endpoint.shape is Shape.UNKNOWN:
        raise IsolationUnsupportedError("requests to this path can't carry a cache salt, so they can't be isolated")
    return True


def salted(body: bytes, tenant: Tenant) -> bytes:
    """Return a body with the tenant's salt as its last key.

    Raises:
        AmbiguousBodyError: It is not surely the same to every parser.
        CacheSaltRefusedError: It brings a salt that it may not, or that the engine would refuse.
        IsolationUnsupportedError: It refers to what others left in the engine.
    """
    fields = _parsed(body)
    for name, why in _STATE_FIELDS.items():
        if fields.get(name) is not None:
            raise IsolationUnsupportedError(f"`{name}` can't be isolated: {why}", param=name)
    salt = tenant.salt(_own_salt(body, fields, tenant) if FIELD in fields else None)
    end = body.rindex(b"}")
    comma = b"," if fields else b""
    return b"".join((body[:end], comma, _SPELLED, b':"', salt.encode("ascii"), b'"', body[end:]))


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        # What orjson takes is strict JSON in UTF-8: without a mark, a NUL, or anything after the value.
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = _parsed_as_python_does(body)
    if not isinstance(fields, dict):
        raise AmbiguousBodyError("the body must be a JSON object")
    return fields


def _parsed_as_python_does(body: bytes) -> object:
    """Parse what the engine takes and orjson does not: NaN, halves of surrogate pairs, deep nesting."""
    if body.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in body:
        raise AmbiguousBodyError("the body must be plain UTF-8, without a byte order mark")
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise AmbiguousBodyError("the body must be plain UTF-8, without a byte order mark") from None
    except (ValueError, RecursionError):
        raise AmbiguousBodyError("the body must be a JSON object, and nothing more") from None


def _own_salt(body: bytes, fields: dict[str, Any], tenant: Tenant) -> str | None:
    spelled = [key for key in spelled_keys(body) if key == _SPELLED or (b"\\" in key and json.loads(key) == FIELD)]
    if spelled != [_SPELLED]:
        raise AmbiguousBodyError("`cache_salt` must be given once, and spelled without escapes", param=FIELD)
    own = fields[FIELD]
    if own is None:
        return None
    if not isinstance(own, str) or not 0 < len(own) <= _MAX_SALT_CHARACTERS or _NOT_IN_SALT & set(own):
        said = "must be 1 to 128 characters, none of them '@', '/', '\\' or NUL"
        raise CacheSaltRefusedError(f"`cache_salt` {said}", param=FIELD)
    if not tenant.combines_salts:
        raise CacheSaltRefusedError("`cache_salt` is set by the router for this API key", param=FIELD)
    return own
