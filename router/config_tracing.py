"""What the configuration says of traces."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from router.config_section import Section


class TracingConfig(Section):
    """Where spans of requests are sent, and of how many."""

    endpoint: str | None = Field(
        None,
        description="an OTLP receiver's URL over HTTP, as http://collector:4318/v1/traces; none: no traces. Needs the "
        "extra `otel`; headers for it: the environment's OTEL_EXPORTER_OTLP_HEADERS",
    )
    sample_share: float = Field(0.01, ge=0, le=1, description="share of the requests without a trace of their own")
    follow_parent: bool = Field(
        True, description="whether a client's sampled trace (traceparent) is gone on with, whatever `sample_share` says"
    )
    max_per_s: float = Field(
        50.0, gt=0, le=10_000, description="requests traced a second, at most: clients may ask for any number"
    )
    service_name: str = Field("warmroute", min_length=1, description="`service.name` of the spans")

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
                raise ValueError("must be http://HOST:PORT/PATH or https://..., without a user's name")
        return value
