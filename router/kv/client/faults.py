"""What a failure of Redis means, and what to do about it: one line for an operator."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from router.kv.log_lines import clean, mask_secrets

MAX_CHARACTERS = 300
_NO_RIGHT = "its user lacks a right: docs/redis.md lists what agents and routers need"

_BY_CLASS: tuple[tuple[type[BaseException], str, str], ...] = (
    (OutOfMemoryError, "OOM", "it is full: raise its maxmemory, or find what else fills it"),
    (
        NoPermissionError,
        "NOPERM",
        _NO_RIGHT,
    ),
    (ReadOnlyError, "READONLY", "a replica answers: the primary is looked for; if this stays, correct the address"),
    (BusyLoadingError, "LOADING", "it reads its data from disk: it answers when it is done"),
    (MasterDownError, "MASTERDOWN", "a replica that lost its primary answers: see the failover"),
    (ClusterDownError, "CLUSTERDOWN", "a part of its slots has no node: see CLUSTER INFO and its failed nodes"),
    (ClusterCrossSlotError, "CROSSSLOT", "a Cluster answers: write redis+cluster://HOST:PORT"),
    (TryAgainError, "TRYAGAIN", "a slot is moving to another node: it answers when that is done"),
)
_BY_WORD: tuple[tuple[str, str, str], ...] = (
    ("ACL failure in script", "NOPERM", _NO_RIGHT),
    ("MISCONF", "MISCONF", "it can't save to disk and takes no writes: free its disk; its log says why"),
    ("BUSY", "BUSY", "a script blocks it: SCRIPT KILL, or wait"),
    ("UNKILLABLE", "BUSY", "a script blocks it: wait, or restart it"),
    ("NOREPLICAS", "NOREPLICAS", "too few of its replicas are in reach (min-replicas-to-write): bring them back"),
    ("NOPROTO", "NOPROTO", "it does not speak this protocol: leave protocol= out of the URL"),
    ("DENIED", "DENIED", "its protected mode refuses other hosts: give it a password"),
    ("max number of clients", "maxclients", "it takes no more connections: raise its maxclients"),
    ("DB index is out of range", "SELECT", "it has no such database: correct the number in the URL"),
    ("No such master", "SENTINEL", "the Sentinels know no primary of this name: correct the service in the URL"),
    ("unknown command", "version", "Redis 7 or Valkey 7 is the oldest that is supported"),
)
_BY_PLACE: tuple[tuple[str, str, str], ...] = (
    ("mismatch, certificate is not valid", "TLS", "its certificate bears another name: connect by one that it bears"),
    ("CERTIFICATE_VERIFY_FAILED", "TLS", "its certificate is not trusted: give its CA by ssl_ca_certs="),
    ("certificate verify failed", "TLS", "its certificate is not trusted: give its CA by ssl_ca_certs="),
    ("ALERT", "TLS", "it refuses our side of TLS: give a client certificate by ssl_certfile= and ssl_keyfile="),
    ("WRONG_VERSION_NUMBER", "TLS", "it does not speak TLS at this port: write redis://, or correct the port"),
    ("password_file", "secret", "correct its path, or its rights"),
)
_OF_THE_SERVER = ("ACL failure in script", "BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE", "NOPROTO")
"""What Redis says of itself in errors that have no class of their own."""


def is_of_one_key(error: BaseException) -> bool:
    """Tell errors of one key, such as a wrong type, from what the server says of itself or of our rights."""
    return type(error) is ResponseError and not str(error).startswith(_OF_THE_SERVER)


def kind_of(error: BaseException) -> str:
    """Return one word for what a failure is."""
    return _entry(error)[0]


def told(error: BaseException) -> str:
    """Return what failed, what it said, and what to do, in one line without secrets."""
    kind, remedy = _entry(error)
    text = " ".join(str(error).split()) or type(error).__name__
    text = clean(mask_secrets(text), MAX_CHARACTERS)
    return f"{kind}: {text}; {remedy}" if remedy else text


def _entry(error: BaseException) -> tuple[str, str]:
    text = str(error)
    if isinstance(error, AuthenticationError) and "password_file" not in text:
        if "required" in text.lower():
            return "NOAUTH", "it wants a user and password: give them in the URL, or by password_file="
        return "WRONGPASS", "it refuses the user or the password: correct them, in the URL or its password_file"
    for cls, kind, remedy in _BY_CLASS:
        if isinstance(error, cls):
            return kind, remedy
    for word, kind, remedy in _BY_WORD:
        if text.startswith(word) or (word[0].islower() and word in text) or (" " in word and word in text):
            return kind, remedy
    for word, kind, remedy in _BY_PLACE:
        if word in text:
            return kind, remedy
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        return "timeout", "no answer: see whether it hangs, speaks TLS as the URL has it, and what lies between"
    if isinstance(error, (RedisConnectionError, OSError)):
        return "unreachable", "start it, or correct its address; see whether it speaks TLS as the URL has it"
    return "error", ""
