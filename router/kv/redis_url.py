"""The URL of a Redis, of any kind: what it says, and what is wrong with it. Nothing connects here.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]             one server, or an address that follows the primary
    rediss://...                                         the same over TLS
    unix://[USER:PASSWORD@]/PATH                         a Unix socket
    redis+sentinel://...HOST[:PORT],HOST.../SERVICE[/DB] the primary that Sentinels name (rediss+sentinel: over TLS)
    redis+cluster://...HOST[:PORT],HOST...               a Cluster, from any of its nodes (rediss+cluster: over TLS)

Options follow a `?`. What a problem says never repeats the URL, which may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote

from router.kv.addresses import check_host

DEFAULT_PORT, SENTINEL_PORT = 6379, 26379
KINDS: dict[str, tuple[Literal["server", "sentinel", "cluster"], bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("server", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
"""Kind and TLS by scheme."""
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL = ("service_name", "sentinel_username", "sentinel_password", "sentinel_password_file", "sentinel_ssl")
OPTIONS = ("db", "username", "password", "password_file", "client_name", "protocol", *_TLS, *_SENTINEL)
"""What may stand in the query. Time limits and retries are not the URL's: feeds and agents rely on their own."""
FILE_OPTIONS = ("password_file", "sentinel_password_file", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_FORM = "write redis://[USER:PASSWORD@]HOST:PORT/DB, rediss://..., unix:///PATH, redis+sentinel://HOST,HOST/SERVICE "
_FORM += "or redis+cluster://HOST,HOST"
_ESCAPE = "percent-encode special characters of a password, or give it by password_file="
_NUMBER = re.compile(r"\d{1,9}\Z", re.ASCII)
_PORT = re.compile(r"\d{1,5}\Z", re.ASCII)
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

Address = tuple[str, int]
"""(host, port)."""


class RedisUrlError(ValueError):
    """The URL can't be used; `str(error)` is what is wrong and what would be right, in one line without secrets."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who connects.

    Attributes:
        password: None where there is none, or where a file holds it.
        password_file: Read at each connection, so that a password may be changed while processes run.
    """

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server's certificate is checked, and our own.

    Attributes:
        check: `required`, `optional` or `none` (whoever answers is trusted).
        check_host: Whether the certificate must bear the host's name.
        ca_file, cert_file, key_file: Paths, in PEM.
    """

    check: str = "required"
    check_host: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """What a URL says.

    Attributes:
        kind: `server`: one server, or one address behind which the primary moves.
        addresses: Of the server, of Sentinels, or of some nodes of a Cluster; none for a Unix socket.
        socket_path: Of a Unix socket; empty otherwise.
        service: What Sentinels call the primary.
        tls: None: without TLS.
        sentinel_login, sentinel_tls: For Sentinels themselves.
    """

    kind: Literal["server", "sentinel", "cluster"]
    addresses: tuple[Address, ...] = ()
    socket_path: str = ""
    db: int = 0
    login: Login = Login()
    tls: Tls | None = None
    service: str = ""
    sentinel_login: Login = Login()
    sentinel_tls: Tls | None = None
    client_name: str | None = None
    protocol: int = 2
    files: tuple[tuple[str, str], ...] = ()
    """(option, path) of every file that must be there."""

    @property
    def holds_secret(self) -> bool:
        """Whether a password stands in the URL itself."""
        return bool(self.login.password or self.sentinel_login.password)

    @property
    def shown(self) -> str:
        """Where it is, without user and password: fit for logs."""
        if self.socket_path:
            return self.socket_path
        at = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses)
        if self.kind == "sentinel":
            return f"{self.service} of sentinels {at}"
        return f"cluster {at}" if self.kind == "cluster" else at


def check_redis_url(url: str) -> str | None:
    """Return what is wrong with a URL, with the remedy; None when a client can be made of it."""
    try:
        parse_redis_url(url)
    except RedisUrlError as error:
        return str(error)
    return None


def missing_files(url: str) -> list[str]:
    """Return a problem for each file that a URL, which can be used, names and that can't be read now."""
    problems = []
    for option, path in parse_redis_url(url).files:
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            problems.append(f"{option}=: can't read {path} ({error.strerror}); correct the path, or its rights")
    return problems


def parse_redis_url(url: str) -> RedisTarget:
    """Return what a URL says.

    Raises:
        RedisUrlError: It says something that can't be.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in KINDS:
        raise RedisUrlError(f"the scheme is none of {', '.join(KINDS)}; {_FORM}")
    kind, with_tls = KINDS[scheme.lower()]
    if "#" in rest:
        raise RedisUrlError(f"a '#' is not part of it ({_ESCAPE}); {_FORM}")
    if re.search(r"[\x00-\x20\x7f]", rest):
        raise RedisUrlError(f"it holds a space or a control character ({_ESCAPE}); {_FORM}")
    rest, _, query = rest.partition("?")
    options = _options(query)
    place, slash, path = rest.partition("/")
    credentials, at, hosts = place.rpartition("@")
    login = _login(credentials, options) if at else _login("", options)
    if scheme.lower() == "unix":
        if hosts or path.strip("/") == "":
            raise RedisUrlError(f"the socket's path is missing; {_FORM}")
        addresses: tuple[Address, ...] = ()
    else:
        addresses = _addresses(hosts, kind)
    tls = _tls(options) if with_tls else None
    if tls is None and not options.keys().isdisjoint(_TLS):
        raise RedisUrlError("an option ssl_... stands there without TLS; write rediss:// for it")
    if kind != "sentinel" and not options.keys().isdisjoint(_SENTINEL):
        raise RedisUrlError(
            "an option of Sentinels stands there without them; write redis+sentinel://HOST,HOST/SERVICE"
        )
    service, database = _path(kind, "" if scheme.lower() == "unix" else unquote(path), options)
    if kind == "cluster" and database:
        raise RedisUrlError("a Cluster has database 0 alone; fleets that share it are told apart by their namespace")
    return RedisTarget(
        kind,
        addresses,
        unquote(slash + path) if scheme.lower() == "unix" else "",
        database,
        login,
        tls,
        service,
        Login(
            options.get("sentinel_username"),
            options.get("sentinel_password"),
            options.get("sentinel_password_file"),
        ),
        tls if _truth(options, "sentinel_ssl", with_tls) else None,
        options.get("client_name"),
        int(options.get("protocol", "2")),
        tuple((name, options[name]) for name in FILE_OPTIONS if name in options),
    )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise RedisUrlError(f"an option after '?' is none of {', '.join(OPTIONS)}")
        if name in options:
            raise RedisUrlError(f"{name}= stands there twice")
        if "\0" in value or (name in FILE_OPTIONS and not value):
            raise RedisUrlError(f"{name}= names no file")
        options[name] = value
    if options.get("protocol", "2") not in ("2", "3"):
        raise RedisUrlError("protocol= is neither 2 nor 3")
    for one, other in (("password", "password_file"), ("sentinel_password", "sentinel_password_file")):
        if one in options and other in options:
            raise RedisUrlError(f"{one}= and {other}= contradict each other; leave one of them out")
    if re.search(r"[^!-~]", options.get("client_name", "")):
        raise RedisUrlError("client_name= holds a space, or a character that is not ASCII")
    return options


def _login(credentials: str, options: dict[str, str]) -> Login:
    user, colon, password = credentials.partition(":")
    if colon and password and ("password" in options or "password_file" in options):
        raise RedisUrlError("it gives two passwords; leave one of them out")
    return Login(
        unquote(user) or options.get("username") or None,
        (unquote(password) if password else options.get("password")) or None,
        options.get("password_file"),
    )


def _addresses(hosts: str, kind: str) -> tuple[Address, ...]:
    texts = hosts.split(",")
    if len(texts) > 1 and kind == "server":
        raise RedisUrlError(f"one server has one address; {_FORM}")
    return tuple(_address(text, SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT) for text in texts)


def _address(text: str, default_port: int) -> Address:
    match = re.match(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::(.*))?\Z", text)
    if match is None or (match[3] and not _PORT.match(match[3])) or int(match[3] or 1) > 65_535:
        raise RedisUrlError(f"host or port is malformed ({_ESCAPE}); {_FORM}")
    if match[3] and int(match[3]) == 0:
        raise RedisUrlError(f"port 0 names no server; {_FORM}")
    host = match[1] if match[1] is not None else unquote(match[2])
    if not host:
        raise RedisUrlError(f"the host is missing; {_FORM}")
    if check_host(host) is not None or (match[1] is not None and ":" not in host):
        raise RedisUrlError(f"the host is no name that can be resolved; {_FORM}")
    return host.lower(), int(match[3] or default_port)


def _path(kind: str, path: str, options: dict[str, str]) -> tuple[str, int]:
    """Return the service that Sentinels know, and the database."""
    service = options.get("service_name", "")
    if kind == "sentinel":
        named, _, path = path.partition("/")
        if named and service and named != service:
            raise RedisUrlError("its path and service_name= name two services; leave one of them out")
        service = named or service
        if not service or re.search(r"[^!-~]", service):
            raise RedisUrlError(f"what the Sentinels call the primary is missing, as /SERVICE after the hosts; {_FORM}")
    if path and not _NUMBER.match(path):
        raise RedisUrlError(f"the path is no number of a database; {_FORM}")
    if "db" in options and not _NUMBER.match(options["db"]):
        raise RedisUrlError("db= is no number of a database")
    return service, int(options.get("db") or path or 0)


def _tls(options: dict[str, str]) -> Tls:
    check = options.get("ssl_cert_reqs", "required")
    if check not in ("none", "optional", "required"):
        raise RedisUrlError("ssl_cert_reqs= is none of none, optional, required")
    if ("ssl_keyfile" in options) and ("ssl_certfile" not in options):
        raise RedisUrlError("ssl_keyfile= is of no use without ssl_certfile=, the certificate that it belongs to")
    return Tls(
        check,
        _truth(options, "ssl_check_hostname", default=True),
        options.get("ssl_ca_certs"),
        options.get("ssl_certfile"),
        options.get("ssl_keyfile"),
    )


def _truth(options: dict[str, str], name: str, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in _WORDS:
        raise RedisUrlError(f"{name}= is neither yes nor no")
    return _WORDS[value.lower()]
