"""What the configuration says of finding replicas that have no agent: by DNS, and in Kubernetes."""

from __future__ import annotations

import importlib.util
import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from router.config_section import PositiveSeconds, Section
from router.kv.addresses import check_host_name

Port = Annotated[int, Field(ge=1, le=65_535)]
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SERVICE = re.compile(rf"{_LABEL}\Z")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


class DnsSource(Section):
    """A name whose A and AAAA records are engines, as a headless Service has."""

    name: str = Field(description="the name to look up, whose A and AAAA records are the engines")
    port: Port = Field(description="the port that the engines listen on")
    scheme: Literal["http", "https"] = Field("http", description="how engines are spoken to: http or https")
    every_s: PositiveSeconds = Field(5.0, description="seconds between two lookups")
    gone_after: int = Field(
        3, ge=1, le=1_000, description="answers in a row that must lack an address before its replica is withdrawn"
    )
    nameserver: str | None = Field(
        None, description="ADDRESS:PORT (or [IPV6]:PORT) of the name server; default: those of /etc/resolv.conf"
    )

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            check_host_name(value)
            return value
        raise ValueError("is an address, which is not looked up: list it in `replicas`")

    @field_validator("nameserver")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            split_nameserver(value)
        return value


class KubernetesSource(Section):
    """A Service whose endpoints are engines, followed by its EndpointSlices."""

    service: str = Field(description="name of the Service whose endpoints are the engines")
    namespace: str | None = Field(
        None, description="its namespace; default: the router's own pod's, else the kubeconfig's"
    )
    port: Port | str | None = Field(
        None, description="the engines' port: a number, or its name in the Service; default: the Service's only port"
    )
    scheme: Literal["http", "https"] = Field("http", description="how engines are spoken to: http or https")
    relist_s: PositiveSeconds = Field(
        300.0, description="seconds after which all endpoints are listed anew, in case a change was never told"
    )
    watch_s: PositiveSeconds = Field(
        30.0, description="seconds that one watch lasts; one that hangs is given up 5 seconds later"
    )

    @field_validator("service", "namespace")
    @classmethod
    def _is_a_label(cls, value: str | None) -> str | None:
        if value is not None and not _SERVICE.match(value):
            raise ValueError("must be 1 to 63 lowercase letters, digits and hyphens, as Kubernetes' names are")
        return value

    @field_validator("port", mode="before")
    @classmethod
    def _digits_are_a_number(cls, value: object) -> object:
        return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value

    @field_validator("port")
    @classmethod
    def _is_a_port_s_name(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str) and not _PORT_NAME.match(value):
            raise ValueError("must be a number from 1 to 65535, or a port's name of lowercase letters and digits")
        return value


class DiscoveryConfig(Section):
    """Where replicas without an agent are found."""

    dns: tuple[DnsSource, ...] = Field(())
    kubernetes: tuple[KubernetesSource, ...] = Field(())
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file, for a router outside of the cluster; default: the pod's service account"
    )

    @field_validator("dns", "kubernetes")
    @classmethod
    def _each_once(cls, value: tuple[Section, ...]) -> tuple[Section, ...]:
        seen = [_named(source) for source in value]
        if twice := sorted({name for name in seen if seen.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(twice)}")
        return value


def split_nameserver(address: str) -> tuple[str, int]:
    """Split a name server's `ADDRESS:PORT`; the port is 53 where there is none.

    Raises:
        ValueError: It is not that: a name server is not looked up by name.
    """
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::(\d{1,5}))?", address)
    plain = re.fullmatch(r"([0-9.]+)(?::(\d{1,5}))?", address)
    found = bracketed or plain
    try:
        if found is None:
            raise ValueError
        host, port = str(ipaddress.ip_address(found[1])), int(found[2] or 53)
        if not 0 < port <= 65_535:
            raise ValueError
    except ValueError:
        raise ValueError(f"{address!r} must be ADDRESS:PORT, as 10.0.0.10:53 or [fd00::a]:53") from None
    return host, port


def discovery_problems(config: DiscoveryConfig, environ: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    """Yield what is missing here for what is configured, as (path, message, remedy)."""
    if not config.kubernetes:
        return
    if importlib.util.find_spec("kubernetes_asyncio") is None:
        yield (
            "discovery.kubernetes",
            "needs the package kubernetes-asyncio, which is not installed",
            "pip install 'warmroute[router,k8s]'",
        )
    if config.kubeconfig is not None:
        if not config.kubeconfig.is_file():
            yield "discovery.kubeconfig", f"there is no file {config.kubeconfig}", "name a kubeconfig file"
    elif not environ.get("KUBERNETES_SERVICE_HOST"):
        yield (
            "discovery.kubernetes",
            "this is not a pod of a cluster (KUBERNETES_SERVICE_HOST is not set)",
            "name a `discovery.kubeconfig`, or run the router in the cluster",
        )


def _named(source: Section) -> str:
    if isinstance(source, KubernetesSource):
        return f"{source.namespace or ''}/{source.service}".lstrip("/")
    return f"{source.name}:{source.port}" if isinstance(source, DnsSource) else ""
