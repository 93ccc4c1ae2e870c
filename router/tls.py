"""TLS contexts from the configuration's files, with everything that is wrong with them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.config import RouterConfig
from router.config_tls import ListenTlsConfig, UpstreamTlsConfig
from router.errors import ConfigurationError, Problem

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(slots=True)
class EngineTls:
    """How to speak to engines at https:// addresses. Shared by all who do; a reload changes it in place.

    Attributes:
        server_name: Name that their certificates must bear; None: the host's.
    """

    context: ssl.SSLContext
    server_name: str | None = None

    def use(self, other: EngineTls) -> None:
        """Be as another one from the next connection on."""
        self.context, self.server_name = other.context, other.server_name

    def options(self, url: str) -> dict[str, Any]:
        """Return what aiohttp's client needs for a request to this address."""
        if not url.startswith("https:"):
            return {}
        return {"ssl": self.context, "server_hostname": self.server_name}


@dataclass(frozen=True, slots=True)
class Contexts:
    """What a configuration needs.

    Attributes:
        clients: For `listen`; None: plain HTTP.
        admin: For `admin.listen`.
        engines: For engines at https:// addresses.
    """

    clients: ssl.SSLContext | None
    admin: ssl.SSLContext | None
    engines: EngineTls


def contexts_of(config: RouterConfig) -> Contexts:
    """Read all certificates and keys.

    Raises:
        ConfigurationError: With every file that can't be used.
    """
    problems: list[Problem] = []
    clients = _listening("tls", config.tls, problems) if config.tls is not None else None
    admin = _listening("admin.tls", config.admin.tls, problems) if config.admin.tls is not None else None
    upstream = config.upstream.tls or UpstreamTlsConfig()  # type: ignore[call-arg]
    engines = _connecting("upstream.tls", upstream, problems)
    if problems:
        raise ConfigurationError(problems)
    return Contexts(clients, admin, EngineTls(engines, upstream.server_name))


def _listening(path: str, config: ListenTlsConfig, problems: list[Problem]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.set_alpn_protocols(["http/1.1"])
    _own(context, path, config.cert, config.key, problems)
    if config.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, f"{path}.client_ca", config.client_ca, problems)
    return context


def _connecting(path: str, config: UpstreamTlsConfig, problems: list[Problem]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[config.min_version]
    context.set_alpn_protocols(["http/1.1"])
    if config.ca is None:
        context.load_default_certs()
    else:
        _trust(context, f"{path}.ca", config.ca, problems)
    if config.cert is not None:
        _own(context, path, config.cert, config.key, problems)
    elif config.key is not None:
        problems.append(Problem(f"{path}.key", "is set without `cert`", "set both"))
    return context


def _own(context: ssl.SSLContext, path: str, cert: Path, key: Path | None, problems: list[Problem]) -> None:
    readable = True
    for name, file in (("cert", cert), ("key", key)):
        if file is not None and (said := _unreadable(file)):
            problems.append(Problem(f"{path}.{name}", said, "name a readable PEM file"))
            readable = False
    if not readable:
        return

    whose_key = f"{path}.cert" if key is None else f"{path}.key"

    def no_passphrase() -> str:
        raise _PassphraseError  # without this OpenSSL would ask at the terminal

    try:
        context.load_cert_chain(cert, key, password=no_passphrase)
    except _PassphraseError:
        remedy = "store it without one, readable to the router alone"
        problems.append(Problem(whose_key, "the key has a passphrase", remedy))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            remedy = "name the two that belong together"
            problems.append(Problem(whose_key, "the key is not the certificate's", remedy))
        else:
            files = str(cert) if key is None else f"{cert} and {key}"
            remedy = "PEM files: a certificate, and its key"
            problems.append(Problem(f"{path}.cert", f"{files} can't be used", remedy))


def _trust(context: ssl.SSLContext, path: str, file: Path, problems: list[Problem]) -> None:
    if said := _unreadable(file):
        problems.append(Problem(path, said, "name a readable PEM file"))
        return
    try:
        context.load_verify_locations(file)
    except ssl.SSLError:
        problems.append(Problem(path, f"{file} holds no certificate", "a PEM file with those of the CAs"))


def _unreadable(file: Path) -> str | None:
    try:
        with file.open("rb"):
            return None
    except OSError as error:
        return f"can't read {file}: {error.strerror}"


class _PassphraseError(Exception):
    """OpenSSL asks for a passphrase."""
