"""What the configuration says of whoever stands before the router: other proxies, and pages in browsers."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from router.config_section import Section

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?\Z")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")


class ForwardedConfig(Section):
    """What engines are told of where a request came from."""

    mode: Literal["off", "append", "replace"] = Field(
        "off",
        description="off: clients' own X-Forwarded-* and Forwarded cross as they came; replace: they are taken out, "
        "and the router's own set; append: those of `trusted` proxies are kept, and the router's added",
    )
    style: Literal["x-forwarded", "forwarded", "both"] = Field(
        "x-forwarded", description="x-forwarded: X-Forwarded-For, -Proto, -Host; forwarded: RFC 7239; or both"
    )
    trusted: tuple[str, ...] = Field((), description="CIDRs of proxies before the router whose headers are believed")
    via: str | None = Field(None, description="name that the router adds to Via; default: it adds nothing")

    @field_validator("trusted")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            try:
                ipaddress.ip_network(item, strict=False)
            except ValueError:
                raise ValueError(f"{item!r} is no CIDR, as 10.0.0.0/8") from None
        return value

    @field_validator("via")
    @classmethod
    def _is_token(cls, value: str | None) -> str | None:
        if value is not None and not _TOKEN.match(value):
            raise ValueError("must be a name of letters, digits, dots and hyphens")
        return value

    @model_validator(mode="after")
    def _append_needs_trust(self) -> Self:
        if self.mode == "append" and not self.trusted:
            raise ValueError("`append` keeps what `trusted` proxies say: name them, or write `replace`")
        return self


class CorsConfig(Section):
    """Pages in browsers that may call the router. Without it, engines answer for themselves."""

    origins: tuple[str, ...] = Field(
        (), description="origins of such pages, as https://app.example, or `*`; none: engines' own answers pass"
    )
    headers: tuple[str, ...] = Field(
        ("authorization", "content-type", "x-request-id"),
        description="request headers that they may send; `*`: those that a preflight asks for",
    )
    expose: tuple[str, ...] = Field(
        ("x-request-id", "retry-after"), description="answer headers that they may read besides the usual ones"
    )
    credentials: bool = Field(False, description="whether they may send cookies and the like; not with `*`")
    max_age_s: int = Field(600, ge=0, le=86_400, description="for how long browsers may remember a preflight's answer")

    @field_validator("origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            if item != "*" and not _ORIGIN.match(item):
                raise ValueError(f"{item!r} is no origin, as https://app.example or https://app.example:8443")
        return value

    @field_validator("headers", "expose")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            if not _TOKEN.match(item):
                raise ValueError(f"{item!r} is no name of a header")
        return value

    @model_validator(mode="after")
    def _credentials_need_origins(self) -> Self:
        if self.credentials and "*" in self.origins:
            raise ValueError("`credentials` can't go to every origin: name those that may")
        return self
