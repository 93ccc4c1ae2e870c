"""What the configuration may hold of placement. What each key trades is told in docs/placement.md."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from router.config_section import Section

POLICIES = (
    "cost",
    "longest-prefix",
    "least-loaded",
    "consistent-hash",
    "power-of-two",
    "round-robin",
    "random",
)
Policy = Literal["cost", "longest-prefix", "least-loaded", "consistent-hash", "power-of-two", "round-robin", "random"]
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_OF_OTHER_USE = (
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "cookie",
    "x-request-id",
)


class WeightsConfig(Section):
    """What the `cost` policy adds up, in prefill tokens."""

    running_tokens: float = Field(20.0, ge=0, le=100_000, description="cost of one running request, in prefill tokens")
    held_share: float = Field(
        0.05, ge=0, le=10, description="cost of one token of the cache that running requests hold, in prefill tokens"
    )
    price_base: float = Field(1.0, ge=0, le=1_000, description="price of an uncached token on an idle fleet")
    price_per_backlog_s: float = Field(
        2.0, ge=0, le=1_000, description="added to the price for each second of mean prefill backlog"
    )
    price_max: float = Field(21.0, ge=0, le=1_000, description="the price never grows over this")
    cpu_tier_share: float = Field(0.8, ge=0, le=1, description="share of a CPU-tier token that counts as saved")
    disk_tier_share: float = Field(0.5, ge=0, le=1, description="share of a disk-tier token that counts as saved")
    kv_pressure_tokens: float = Field(
        0.0, ge=0, le=10_000_000, description="cost of a replica whose KV cache is full, in prefill tokens; 0: none"
    )
    kv_pressure_from: float = Field(
        0.8, ge=0, lt=1, description="share of the KV cache in use from which that cost grows, up to the whole at 1"
    )
    approximate_share: float = Field(
        0.9, ge=0, le=1, description="share of a match that counts under APPROXIMATE trust"
    )


class AffinityConfig(Section):
    """Whose requests stay with one replica, and how strictly."""

    by: Literal["header", "cookie", "conversation"] = Field(
        description="what names a session: a header's value, a cookie's, or the conversation (`prompt_cache_key` in "
        "the body, else what its system and first user message say)"
    )
    name: str | None = Field(None, min_length=1, max_length=128, description="the header's or cookie's name")
    mode: Literal["soft", "hard"] = Field(
        "soft",
        description="`soft`: the session's replica unless another is cheaper by `slack_tokens`; `hard`: as long as it "
        "may take requests at all",
    )
    slack_tokens: float = Field(
        2_000.0, ge=0, le=10_000_000, description="`soft`: what the session's replica may cost more, in prefill tokens"
    )
    lease_s: float = Field(
        600.0, gt=0, le=604_800, description="a session without requests for so long may go anywhere"
    )
    max_sessions: int = Field(
        100_000, ge=1, le=10_000_000, description="sessions remembered (about 200 bytes each), the longest unused go"
    )

    @model_validator(mode="after")
    def _has_a_name(self) -> AffinityConfig:
        if self.by == "conversation" and self.name is not None:
            raise ValueError("`name` is for header and cookie: a conversation is told by the body")
        if self.by != "conversation" and self.name is None:
            raise ValueError(f"`name` is missing: which {self.by} names the session")
        return self

    @field_validator("name")
    @classmethod
    def _can_be_a_name(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not _TOKEN.match(value):
            raise ValueError("must be the name of a header or cookie: letters, digits and !#$%&'*+.^_`|~-")
        if value is not None and info.data.get("by") == "header" and value.lower() in _OF_OTHER_USE:
            raise ValueError(f"{value!r} says something else; name a header that tells sessions apart")
        return value


class ShadowConfig(Section):
    """Other weights, under which real requests are scored too, and nothing else is done."""

    weights: WeightsConfig = Field(default_factory=WeightsConfig)  # type: ignore[arg-type]
    sample_share: float = Field(1.0, gt=0, le=1, description="share of requests that are scored twice")


class WarmingConfig(Section):
    """Prompts' hottest beginnings, computed where they are about to be missed."""

    join: bool = Field(
        False, description="a replica that joins gets its fleet's hottest beginnings before it takes requests"
    )
    drain: bool = Field(
        False, description="hot beginnings that a draining replica alone holds are computed at another before it goes"
    )
    prefixes: int = Field(64, ge=1, le=10_000, description="beginnings for each such replica at most")
    tokens: int = Field(
        200_000, ge=1, le=100_000_000, description="their tokens at most: about what the replica computes for it"
    )
    concurrency: int = Field(2, ge=1, le=256, description="of these requests at once, for each such replica")
    timeout_s: float = Field(
        30.0, gt=0, le=3_600, description="then a replica that joined takes requests as it is, and the rest is left out"
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is warmed."""
        return self.join or self.drain


class PlacementConfig(Section):
    """How a replica is chosen."""

    policy: Policy = Field("cost", description="one of: " + ", ".join(POLICIES))
    request_policies: tuple[Policy, ...] = Field(
        (), description="policies that a request may ask for with `x-warmroute-policy`; none: that header is ignored"
    )
    weights: WeightsConfig = Field(default_factory=WeightsConfig)  # type: ignore[arg-type]
    tie_tokens: float = Field(64.0, ge=0, le=1_000_000, description="candidates this near to the lowest cost tie")
    owner_blocks: int = Field(4, ge=1, le=1_024, description="leading blocks that name a prompt's owner on the ring")
    prefill_tokens_per_s: float = Field(
        8_000.0, gt=0, le=10_000_000, description="prefill speed assumed until a replica's own is learned"
    )
    ramp_s: float = Field(
        10.0,
        ge=0,
        le=3_600,
        description="a replica that joins counts as slower than it is for so long; 0: at once as it is",
    )
    event_lag_s: float = Field(0.2, ge=0, le=60, description="expected blocks outlive the first token by this")
    warming: WarmingConfig = Field(default_factory=WarmingConfig)  # type: ignore[arg-type]
    affinity: AffinityConfig | None = Field(
        None, description="sessions that stay with one replica; none: there are none"
    )
    shadow: ShadowConfig | None = Field(
        None,
        description="weights to try on live traffic: counts where they would choose otherwise; none: nothing is tried",
    )
