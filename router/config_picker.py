"""Where a gateway asks for a replica (`warmroute picker`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from router.config_section import Section


class PickerConfig(Section):
    """The endpoint picker of `warmroute picker`: gateways ask it over Envoy's external processing (gRPC)."""

    listen: str = Field("0.0.0.0:9002", description="HOST:PORT for gRPC; port 0: any free one")
    cert: Path | None = Field(
        None, description="PEM file with the certificate and those that signed it; none: gRPC without TLS"
    )
    key: Path | None = Field(None, description="PEM file with its key, without a passphrase; default: in `cert`")
    fallbacks: int = Field(
        2,
        ge=0,
        le=16,
        description="replicas named after the chosen one, next best first, for the gateway's own retries",
    )

    @field_validator("listen")
    @classmethod
    def _listen_is_address(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (host and colon and port.isdigit() and int(port) < 65536):
            raise ValueError("must be HOST:PORT, such as 0.0.0.0:9002 or [::]:9002")
        return value
