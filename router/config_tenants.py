"""What the configuration says of tenants: who they are, how they are kept apart, what they may use.

A key is a random token of 256 bits (`python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`), and the file
holds its SHA-256 (`printf %s "$KEY" | sha256sum`). A slow hash as for passwords would add nothing: nobody guesses
256 bits, and every request would pay for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from router.config_section import Section
from router.config_tls import UpstreamTlsConfig

KEY_HASH = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
PRIORITIES = 2**31


class TenantConfig(Section):
    """One tenant."""

    name: str = Field(description="letters, digits, `.`, `_`, `-`, up to 64; its cache salt is made of it")
    keys: tuple[str, ...] = Field(min_length=1, description="SHA-256 of each of its API keys, as 64 hex digits")
    isolated: bool = Field(
        True, description="its requests get a cache salt of its own, so that it shares no cached block with others"
    )
    tells_cached: bool = Field(
        False,
        description="its answers carry x-warmroute-matched-tokens and x-warmroute-explain; only if it is isolated, "
        "since they tell what is cached",
    )
    requests_per_minute: int | None = Field(None, ge=1, le=10**9, description="requests; none: no limit")
    tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="prompt and answer tokens together; none: no limit"
    )
    weight: float = Field(1.0, ge=0.01, le=1_000, description="its share of the queue, against other tenants' weights")
    priority: int = Field(
        0, ge=-PRIORITIES, lt=PRIORITIES, description="of requests that name none; lower goes first, as in vLLM"
    )
    priority_min: int | None = Field(
        None,
        ge=-PRIORITIES,
        lt=PRIORITIES,
        description="a request that asks for a lower one is refused; default: `priority`",
    )
    priority_max: int | None = Field(
        None,
        ge=-PRIORITIES,
        lt=PRIORITIES,
        description="a request that asks for a higher one is refused; none: any may",
    )

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit")
        return value

    @field_validator("keys")
    @classmethod
    def _are_hashes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = [KEY_HASH.match(key) for key in value]
        if not all(found):
            # The text itself is not repeated: it may be the key.
            raise ValueError('must be SHA-256 hashes of keys, 64 hex digits each: printf %s "$KEY" | sha256sum')
        return tuple(match[1].lower() for match in found if match)

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> TenantConfig:
        low = self.priority if self.priority_min is None else self.priority_min
        high = PRIORITIES if self.priority_max is None else self.priority_max
        if not low <= self.priority <= high:
            raise ValueError("`priority` must lie between `priority_min` and `priority_max`")
        return self


class IsolationConfig(Section):
    """How tenants' cached blocks are kept apart."""

    secret: str | None = Field(
        None,
        min_length=16,
        description="isolated tenants' cache salts are HMAC-SHA256 of it and the tenant's name; needed as soon as a "
        "tenant is isolated, the same for all routers; a new one makes every isolated prefix cold",
    )
    secret_file: Path | None = Field(None, description="file that holds the secret")
    client_salt: Literal["combine", "refuse"] = Field(
        "combine", description="a `cache_salt` that an isolated tenant's request brings: part of its salt, or a 400"
    )
    gzip_ratio: int = Field(
        100, ge=1, le=1_032, description="a gzip body that grows more than so many times is refused (413)"
    )


class UpstreamConfig(Section):
    """How the router speaks to engines."""

    api_key: str | None = Field(
        None,
        min_length=1,
        description="the engines' API key (--api-key): of the router's own requests, and of tenants', in the place of "
        "their own; without tenants clients' credentials pass unchanged",
    )
    api_key_file: Path | None = Field(None, description="file that holds the key")
    tls: UpstreamTlsConfig | None = Field(None)
    client_rank: bool = Field(
        False,
        description="let a client's X-data-parallel-rank choose the rank of the replica that it gets; by default the "
        "header is dropped, and the router chooses",
    )

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, value: str | None) -> str | None:
        if value is not None and not (value.isascii() and value.isprintable() and " " not in value):
            raise ValueError("must be printable ASCII without spaces: it is sent in a header")
        return value


def tenant_problems(tenants: Iterable[Any], secret_is_set: bool) -> Iterable[tuple[str, str, str]]:
    """Yield (path, message, remedy) of what no single tenant shows; `tenants` as the file has them."""
    names: set[str] = set()
    hashes: dict[str, int] = {}
    isolated = False
    for position, item in enumerate(tenants):
        if not isinstance(item, dict):
            continue
        name = str(item.get("name"))
        if name in names:
            yield f"tenants.{position}.name", "this name is given twice", "give each tenant its own name"
        names.add(name)
        isolated = isolated or item.get("isolated", True) is not False
        keys = item.get("keys")
        for place, key in enumerate(keys if isinstance(keys, list | tuple) else ()):
            found = KEY_HASH.match(str(key))
            if found is None:
                continue
            if hashes.setdefault(found[1].lower(), position) != position:
                remedy = "give each tenant its own keys"
                yield f"tenants.{position}.keys.{place}", "another tenant has this key, too", remedy
    if isolated and not secret_is_set:
        remedy = "set `isolation.secret_file`, or `isolated: false` for tenants that may share cached prefixes"
        yield "isolation.secret", "is missing: isolated tenants' cache salts are made of it", remedy
