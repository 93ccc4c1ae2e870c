"""Is this the URL of a Redis? Pure: routers and agents check theirs before anything starts.

What a problem says never repeats the URL, which may hold a password.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from router.kv.addresses import check_host

SCHEMES = ("redis", "rediss", "unix")
OPTIONS = (
    "db",
    "username",
    "password",
    "client_name",
    "protocol",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
"""What may stand in the query. Time limits and retries are not the URL's: feeds and agents rely on their own."""
_FORM = "write redis://[USER:PASSWORD@]HOST:PORT/DB, rediss://... or unix:///PATH"
_NUMBER = re.compile(r"\d{1,9}\Z", re.ASCII)


def check_redis_url(url: str) -> str | None:
    """Return what is wrong with a URL, with the remedy; None when the client will take it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"host or port is malformed (percent-encode special characters of a password); {_FORM}"
    if parts.scheme not in SCHEMES:
        return f"the scheme is none of {', '.join(SCHEMES)}; {_FORM}"
    if port == 0:
        return f"port 0 names no server; {_FORM}"
    path = unquote(parts.path)
    if parts.scheme == "unix":
        if path in ("", "/"):
            return f"the socket's path is missing; {_FORM}"
    elif not parts.hostname:
        return f"the host is missing; {_FORM}"
    elif check_host(parts.hostname) is not None:
        return f"the host is no name that can be resolved; {_FORM}"
    elif path not in ("", "/") and not _NUMBER.match(path[1:]):
        return f"the path is no number of a database; {_FORM}"
    if parts.fragment:
        return f"a '#' is not part of it (percent-encode special characters of a password); {_FORM}"
    return _check_query(parts.query)


def _check_query(query: str) -> str | None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            return f"an option after '?' is none of {', '.join(OPTIONS)}"
        if name == "db" and not _NUMBER.match(value):
            return "db= is no number of a database"
        if name == "protocol" and value not in ("2", "3"):
            return "protocol= is neither 2 nor 3"
        if name == "ssl_cert_reqs" and value not in ("none", "optional", "required"):
            return "ssl_cert_reqs= is none of none, optional, required"
    return None
