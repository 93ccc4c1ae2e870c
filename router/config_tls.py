"""What the configuration says of TLS: of addresses that are listened on, and towards engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from router.config_section import Section

TlsVersion = Annotated[Literal["1.2", "1.3"], BeforeValidator(str)]
"""YAML makes a number of it."""


class ListenTlsConfig(Section):
    """TLS of an address that is listened on."""

    cert: Path = Field(description="PEM file with the certificate and those that signed it, the server's own first")
    key: Path | None = Field(None, description="PEM file with its key, without a passphrase; default: in `cert`")
    client_ca: Path | None = Field(
        None, description="PEM file with CAs: clients must show a certificate of one of them (mutual TLS)"
    )
    min_version: TlsVersion = Field("1.2", description="oldest version of TLS that is spoken: 1.2 or 1.3")


class UpstreamTlsConfig(Section):
    """TLS to engines whose address begins with https://."""

    ca: Path | None = Field(
        None, description="PEM file with the CAs that sign engines' certificates; default: the system's"
    )
    cert: Path | None = Field(
        None, description="PEM file with the router's own certificate, for engines that ask for one"
    )
    key: Path | None = Field(None, description="PEM file with its key, without a passphrase; default: in `cert`")
    server_name: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="name that engines' certificates must bear; default: the host in each address",
    )
    min_version: TlsVersion = Field("1.2", description="oldest version of TLS that is spoken: 1.2 or 1.3")
