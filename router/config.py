"""What the router's configuration may hold: every key with its type, range, default and meaning.

Times are seconds (`_s`), sizes bytes (`_bytes`), lengths tokens (`_tokens`). `config_file.py` reads the file and checks
what no single key shows.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from router.config_bounds import LimitsConfig, RetryConfig, TimeoutsConfig
from router.config_clients import CorsConfig, ForwardedConfig
from router.config_discovery import DiscoveryConfig
from router.config_names import SplitTarget
from router.config_picker import PickerConfig
from router.config_placement import PlacementConfig
from router.config_section import Section
from router.config_tenants import IsolationConfig, TenantConfig, UpstreamConfig
from router.config_tls import ListenTlsConfig
from router.config_tracing import TracingConfig
from router.kv.addresses import check_allow, check_engine_url, check_host_name, normalised_url
from router.kv.redis_url import check_redis_url, missing_files

DEFAULT_PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/models",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/version",
)
OWN_PATHS = ("/healthz", "/readyz", "/metrics", "/admin")
"""Health, metrics and admin; so is all under /admin/."""
_PATH = re.compile(r"/[!-~]*\Z")


class ModelConfig(Section):
    """A model whose prompts the router understands."""

    name: str = Field(min_length=1, description="the name that clients send; adapters of it are found at the replicas")
    tokenizer: Path | None = Field(
        None,
        description="folder with tokenizer.json, tokenizer_config.json, chat template, or with a file of ranks or of "
        "Mistral's; one such file; or OWNER/NAME on the Hugging Face hub; none: what the model's agents publish, and "
        "where they publish none, its replicas are asked to tokenise each prompt",
    )
    revision: str | None = Field(None, min_length=1, description="commit, tag or branch, for OWNER/NAME; default main")
    chat_template: Path | None = Field(None, description="a template file, if the engine has its own (--chat-template)")
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="the engine's --default-chat-template-kwargs"
    )
    allow_client_template: bool = Field(
        False, description="run the `chat_template` of a request too (engines with --trust-request-chat-template)"
    )
    block_size: int = Field(16, ge=1, le=4096, description="tokens a block, where the engine does not say")
    aliases: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="other names for it: requests that use one get the model's own name in their body, unless the "
        "engines serve the alias themselves (--served-model-name)",
    )


class ReplicaConfig(Section):
    """A replica that is known without an agent."""

    url: str = Field(description="http://HOST:PORT of the engine")
    id: str | None = Field(
        None, min_length=1, max_length=253, description="its name, which clients see; default r0, r1, ... by position"
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if problem := check_engine_url(value):
            raise ValueError(problem)
        return normalised_url(value)

    @field_validator("id")
    @classmethod
    def _is_printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("must have no control characters: it is sent in a header and written to logs")
        return value


class AdminConfig(Section):
    """Where health, metrics and decisions are served."""

    listen: str | None = Field(None, description="HOST:PORT of its own; default: shares a loopback `listen`")
    tls: ListenTlsConfig | None = Field(None)
    token: str | None = Field(None, min_length=8, description="bearer token for /admin and /metrics")
    token_file: Path | None = Field(None, description="file that holds the token")
    decisions: int = Field(1_000, ge=0, le=1_000_000, description="decisions kept for /admin/decisions")
    tells_cached: bool | None = Field(
        None,
        description="whether block lists, traces and `POST /admin/explain` are answered, which tell what is cached; "
        "none: only without tenants",
    )
    traces: bool = Field(
        False,
        description="keep hashes of each prompt with its decision, for `warmroute doctor --traffic`; costs some ms "
        "a request and up to 6 KB a decision",
    )

    @field_validator("listen")
    @classmethod
    def _listen_is_address(cls, value: str | None) -> str | None:
        if value is not None:
            _check_listen(value)
        return value


class RegistrationConfig(Section):
    """Which leases in Redis are believed."""

    secret: str | None = Field(None, min_length=16, description="leases must be signed with it (HMAC-SHA256)")
    secret_file: Path | None = Field(None, description="file that holds the secret")
    allow: tuple[str, ...] = Field(
        (), description="CIDRs or host patterns that a lease's address must match; empty: all"
    )

    @field_validator("allow")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if problems := [problem for problem in map(check_allow, value) if problem]:
            raise ValueError("; ".join(problems))
        return value


class RedisConfig(Section):
    """Where agents publish."""

    url: str = Field(description="redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// or unix://PATH")
    namespace: str = Field("wr", pattern=r"^[A-Za-z0-9_-]{1,32}$", description="first part of every key")
    lanes: int = Field(16, ge=1, le=1_024, description="streams; the same for every agent and router")

    @field_validator("url")
    @classmethod
    def _is_redis(cls, value: str) -> str:
        if problem := check_redis_url(value) or "; ".join(missing_files(value)):
            raise ValueError(problem)
        return value


class LogConfig(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severity written")
    format: Literal["console", "json"] = Field("console", description="for people or for machines")
    access: bool = Field(True, description="a line a request, with its decision in brief")


class RouterConfig(Section):
    """The whole file. The least that works: `listen`, one model, and `replicas` or `redis`."""

    listen: str = Field("127.0.0.1:8080", description="HOST:PORT for clients; port 0: any free one")
    tls: ListenTlsConfig | None = Field(None)
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="processes that serve `listen` together; each has an index of its own, so that memory and reads "
        "from Redis multiply",
    )
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    splits: dict[str, Annotated[tuple[SplitTarget, ...], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="names that stand for several models: `NAME: [{model: A, weight: 9}, {model: B, weight: 1}]`; a "
        "conversation stays with the model that it began with",
    )
    replicas: tuple[ReplicaConfig, ...] = Field(())
    discovery: DiscoveryConfig = Field(default_factory=DiscoveryConfig)  # type: ignore[arg-type]
    redis: RedisConfig | None = Field(None)
    placement: PlacementConfig = Field(default_factory=PlacementConfig)  # type: ignore[arg-type]
    limits: LimitsConfig = Field(default_factory=LimitsConfig)  # type: ignore[arg-type]
    retry: RetryConfig = Field(default_factory=RetryConfig)  # type: ignore[arg-type]
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig)  # type: ignore[arg-type]
    paths: tuple[str, ...] = Field(DEFAULT_PATHS, description="paths that clients may use; all others are 404")
    tenants: tuple[TenantConfig, ...] | None = Field(
        None,
        description="who may send requests: a list, or a file that holds one; none: anyone may, and API keys pass on",
    )
    tenants_file: Path | None = Field(None, description="file that holds the list (or write its name as `tenants`)")
    tracing: TracingConfig = Field(default_factory=TracingConfig)  # type: ignore[arg-type]
    abort_on_half_close: bool = Field(
        False,
        description="take a client that has finished sending (FIN) for one that has left; without it the router finds "
        "out, and serves those that wait",
    )
    forwarded: ForwardedConfig = Field(default_factory=ForwardedConfig)  # type: ignore[arg-type]
    cors: CorsConfig = Field(default_factory=CorsConfig)  # type: ignore[arg-type]
    isolation: IsolationConfig = Field(default_factory=IsolationConfig)  # type: ignore[arg-type]
    upstream: UpstreamConfig = Field(default_factory=UpstreamConfig)  # type: ignore[arg-type]
    registration: RegistrationConfig = Field(default_factory=RegistrationConfig)  # type: ignore[arg-type]
    admin: AdminConfig = Field(default_factory=AdminConfig)  # type: ignore[arg-type]
    picker: PickerConfig = Field(default_factory=PickerConfig)  # type: ignore[arg-type]
    log: LogConfig = Field(default_factory=LogConfig)  # type: ignore[arg-type]
    record: Path | None = Field(
        None,
        description="file to write a trace of the requests to, which `warmroute simulate` reads: times, lengths and "
        "names of blocks, no text; one from an earlier start is renamed; needs `workers: 1`",
    )

    @field_validator("record")
    @classmethod
    def _record_by_one(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("workers", 1) > 1:
            raise ValueError("needs `workers: 1`: each worker would name blocks by a key of its own")
        return value

    @field_validator("redis", mode="before")
    @classmethod
    def _redis_url_alone(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("listen")
    @classmethod
    def _listen_is_address(cls, value: str) -> str:
        _check_listen(value)
        return value

    @field_validator("paths")
    @classmethod
    def _paths_can_be_asked(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("must name at least one path: with none, every request is refused")
        for path in value:
            if not _PATH.match(path) or any(character in path for character in "\\%;#?"):
                raise ValueError(f"{path!r} must begin with / and be a path alone: no spaces, no query, no escapes")
            if path.rstrip("/") in OWN_PATHS or path.startswith("/admin/"):
                raise ValueError(f"{path!r} is the router's own")
        return value


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        ValueError: It is not that.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} must be HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: an IPv6 address needs brackets, as [::1]:8080")
    return host or "0.0.0.0", int(port)


def _check_listen(address: str) -> None:
    host, _ = split_address(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        check_host_name(host)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the address."""
    return host == "localhost" or host == "::1" or host.startswith("127.")
