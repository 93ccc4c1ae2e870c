"""Two tenants for the data plane's tests: acme (isolated) and free (not)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

SECRET = "a secret of enough length"
KEY, FREE_KEY = "wr-acme-key", "wr-free-key"
UPSTREAM = {"api_key": "UK-222"}


def hashed(key: str | bytes) -> str:
    return hashlib.sha256(key if isinstance(key, bytes) else key.encode()).hexdigest()


def tenants(*more: dict[str, Any], **acme: Any) -> dict[str, Any]:
    """Settings with the tenants acme (isolated) and free (not)."""
    listed = [
        {"name": "acme", "keys": [hashed(KEY), hashed("wr-acme-second")], **acme},
        {"name": "free", "keys": [hashed(FREE_KEY)], "isolated": False},
        *more,
    ]
    return {"tenants": listed, "isolation": {"secret": SECRET}}


def key(value: str = KEY) -> str:
    return f"Authorization: Bearer {value}"


def salt(name: str = "acme", own: str | None = None) -> str:
    message = name if own is None else f"{name}\0{own}"
    digest = hmac.new(SECRET.encode(), message.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
