"""What the operator tells an agent, checked as a whole."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from replica.agent.engine_options import json_option, text_option
from replica.agent.private_state import default_folder
from replica.errors import UsageError
from router.kv.addresses import check_engine_url, check_host
from router.kv.keys import Keys
from router.kv.redis_url import check_redis_url, missing_files

REDIS_VARIABLE = "WARMROUTE_AGENT_REDIS"
SECRET_VARIABLE = "WARMROUTE_AGENT_REGISTRATION_SECRET"  # noqa: S105  (the variable's name)
API_KEY_VARIABLE = "WARMROUTE_AGENT_ENGINE_API_KEY"
_REPLICA_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_MIN_SECRET_BYTES = 16
_MAX_PORT = 65_535
_VARIABLES = "--default-chat-template-kwargs"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """See `replica.agent.command.configure` for what each means.

    Attributes:
        engine: A name of `replica.agent.adapters`, or `auto`.
        engine_command: Starts the engine under the agent; empty where it runs by itself.
        engine_as_it_is: Whether nothing is added to that command.
        drain_s: Longest wait for requests in flight when it ends, seconds.
        state_dir: Where the agent keeps its own state; None keeps none.
        wait_ready_s: Longest wait for the engine's first answer; None waits for ever.
        registration_secret: Signs leases; None leaves them unsigned.
        tokenizer: Folder of the tokenizer that routers are given; None: the model's root, where that is one here.
        chat_template: The engine's own template.
        chat_template_kwargs: Its default variables; None: it has none.
    """

    engine_url: str
    redis_url: str
    engine: str
    advertise: str
    replica_id: str
    kv_events: str | None
    kv_replay: str | None
    hash_seed: str | None
    listen_host: str
    listen_port: int
    keys: Keys
    lease_s: float
    snapshot_s: float
    drain_s: float
    wait_ready_s: float | None
    registration_secret: bytes | None
    engine_api_key: str | None
    log_format: str
    log_level: str
    engine_command: tuple[str, ...] = ()
    tokenizer: Path | None = None
    chat_template: Path | None = None
    state_dir: Path | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    publishes_tokenizer: bool = True
    engine_as_it_is: bool = False


def from_args(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> AgentSettings:
    """Return the settings.

    Raises:
        UsageError: With every problem, and what would be right.
    """
    problems: list[str] = []
    engine_url = _http_url("--engine-url", args.engine_url, problems)
    advertise = _advertised(args.advertise, engine_url, problems)
    redis_url = args.redis or environment.get(REDIS_VARIABLE) or ""
    if not redis_url:
        problems.append(f"--redis: missing; pass redis://HOST:PORT/DB, or set {REDIS_VARIABLE}")
    elif (problem := check_redis_url(redis_url)) is not None:
        problems.append(f"--redis: {problem}")
    else:
        problems += [f"--redis: {problem}" for problem in missing_files(redis_url)]
    for option, address in (("--kv-events", args.kv_events), ("--kv-replay", args.kv_replay)):
        if address is not None and (problem := _zmq_problem(address)) is not None:
            problems.append(f"{option}: {problem}; write tcp://HOST:PORT or ipc://PATH")
    host, port = _listen(args.listen, problems)
    try:
        keys = Keys(args.namespace, args.lanes)
    except ValueError as error:
        keys = Keys()
        problems.append(f"--namespace, --lanes: {error}")
    for option, value in (("--lease-s", args.lease_s), ("--snapshot-s", args.snapshot_s)):
        if not 0.1 <= value <= 3600:
            problems.append(f"{option}: {value} is not within 0.1 to 3600 seconds")
    if not 0 <= args.drain_s <= 86_400:
        problems.append(f"--drain-s: {args.drain_s} is not within 0 to 86400 seconds")
    if args.wait_ready is not None and not 0 <= args.wait_ready < math.inf:
        problems.append(f"--wait-ready: {args.wait_ready} is no number of seconds; leave it out to wait for ever")
    replica_id = args.replica_id or _default_id(advertise, environment)
    if not _REPLICA_ID.match(replica_id):
        problems.append(f"--replica-id: {replica_id!r} must be letters, digits, '.', '_', '-', at most 128")
    if args.hash_seed is not None and not 0 < len(args.hash_seed) <= 256:
        problems.append("--hash-seed: must be the engine's PYTHONHASHSEED as it was set, 1 to 256 characters")
    secret = _secret(args.registration_secret_file, environment, problems)
    problems += _text_problems(args)
    tokenizer, chat_template, variables, publishes = _text_source(args)
    if problems:
        raise UsageError(problems)
    return AgentSettings(
        engine_url=engine_url,
        redis_url=redis_url,
        engine=args.engine,
        advertise=advertise,
        replica_id=replica_id,
        kv_events=args.kv_events,
        kv_replay=args.kv_replay,
        hash_seed=args.hash_seed,
        listen_host=host,
        listen_port=port,
        keys=keys,
        lease_s=args.lease_s,
        snapshot_s=args.snapshot_s,
        drain_s=args.drain_s,
        state_dir=None if args.no_state else args.state_dir or default_folder(),
        wait_ready_s=args.wait_ready or None,
        registration_secret=secret,
        engine_api_key=environment.get(API_KEY_VARIABLE) or None,
        log_format=args.log_format,
        log_level=args.log_level,
        engine_command=tuple(args.engine_command),
        tokenizer=tokenizer,
        chat_template=chat_template,
        chat_template_kwargs=variables,
        publishes_tokenizer=publishes,
        engine_as_it_is=args.engine_as_it_is,
    )


def _http_url(option: str, url: str | None, problems: list[str]) -> str:
    problems += _url_problems(option, url)
    return (url or "").rstrip("/")


def _url_problems(option: str, url: str | None) -> list[str]:
    if not url:
        return [f"{option}: missing; write http://HOST:PORT"]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return [f"{option}: is malformed; write http://HOST:PORT"]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return [f"{option}: {url!r} is no address; write http://HOST:PORT"]
    if port == 0:
        return [f"{option}: port 0 names no server; write http://HOST:PORT"]
    if (problem := check_host(parts.hostname)) is not None:
        return [f"{option}: {problem}; write http://HOST:PORT"]
    if parts.query or parts.fragment:
        return [f"{option}: must have no query or fragment; write http://HOST:PORT"]
    if parts.username is not None or parts.password is not None:
        return [f"{option}: must not carry credentials; set {API_KEY_VARIABLE} for an engine with --api-key"]
    return []


def _advertised(given: str | None, engine_url: str, problems: list[str]) -> str:
    url = (given or engine_url).rstrip("/")
    problem = check_engine_url(url)
    if given and problem is not None:
        problems.append(f"--advertise: {problem}")
    elif problem is not None and _usable(engine_url):
        problems.append(f"--advertise: missing, and --engine-url can't stand for it: {problem}")
    return url


def _usable(engine_url: str) -> bool:
    return not _url_problems("", engine_url)


def _zmq_problem(address: str) -> str | None:
    if address.startswith(("ipc://", "inproc://")):
        return None
    parts = re.match(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^:/\s*]+):(\d{1,5})\Z", address, re.ASCII)
    if parts is None:
        return f"{address[:200]!r} is no ZMQ address"
    if not 1 <= int(parts[2]) <= _MAX_PORT:
        return f"port {parts[2]} is not within 1 to {_MAX_PORT}"
    return check_host(parts[1].strip("[]"))


def _listen(text: str, problems: list[str]) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or re.match(r"\d{1,5}\Z", port, re.ASCII) is None or int(port) > _MAX_PORT:
        problems.append(f"--listen: {text[:200]!r} is no HOST:PORT (port 0 takes any free one)")
        return "127.0.0.1", 0
    host = host.strip("[]")
    if (problem := check_host(host)) is not None:
        problems.append(f"--listen: {problem}; write HOST:PORT")
    return host, int(port)


def _secret(file: str | None, environment: Mapping[str, str], problems: list[str]) -> bytes | None:
    if file is not None:
        try:
            secret = Path(file).read_bytes().strip()
        except OSError as error:
            problems.append(f"--registration-secret-file: can't read {file}: {error.strerror}")
            return None
    elif SECRET_VARIABLE in environment:
        secret = environment[SECRET_VARIABLE].strip().encode()
    else:
        return None
    if len(secret) < _MIN_SECRET_BYTES:
        problems.append(f"the registration secret has fewer than {_MIN_SECRET_BYTES} bytes")
    return secret


def _text_problems(args: argparse.Namespace) -> list[str]:
    problems = []
    if args.tokenizer is not None and not args.tokenizer.is_dir():
        problems.append(f"--tokenizer: {args.tokenizer} is no folder here; give the engine's model folder")
    if args.chat_template is not None and not args.chat_template.is_file():
        problems.append(f"--chat-template: {args.chat_template} is no file here; give the engine's --chat-template")
    if args.default_chat_template_kwargs is not None:
        try:
            json_option((f"{_VARIABLES}={args.default_chat_template_kwargs}",), _VARIABLES)
        except (ValueError, RecursionError):
            problems.append(f"{_VARIABLES}: is no JSON object; give the engine's own value")
    told = args.tokenizer or args.chat_template or args.default_chat_template_kwargs
    if args.no_publish_tokenizer and told:
        problems.append(
            "--no-publish-tokenizer: contradicts --tokenizer, --chat-template and --default-chat-template-kwargs; "
            "leave one of them out"
        )
    return problems


def _text_source(args: argparse.Namespace) -> tuple[Path | None, Path | None, dict[str, Any] | None, bool]:
    """Return folder, template and variables to publish, and whether anything is: as told, else as the engine's command
    has it.

    What that command names and is not here can't be published, and the model's own in its place would be wrong.
    """
    command = args.engine_command
    tokenizer, template = args.tokenizer, args.chat_template
    try:
        if tokenizer is None and (named := text_option(command, "--tokenizer")) is not None:
            tokenizer = Path(named)
        if template is None and (named := text_option(command, "--chat-template")) is not None:
            template = Path(named)
        if args.default_chat_template_kwargs is not None:
            command = (f"{_VARIABLES}={args.default_chat_template_kwargs}",)
        variables = json_option(command, _VARIABLES)
        is_here = (tokenizer is None or tokenizer.is_dir()) and (template is None or template.is_file())
    except (OSError, ValueError, RecursionError):  # a template may stand there as text, longer than any name
        variables, is_here = None, False
    return tokenizer, template, variables, is_here and not args.no_publish_tokenizer


def _default_id(advertise: str, environment: Mapping[str, str]) -> str:
    """Return the pod's or host's name and a short hash of the address: clients see it, so it tells no address."""
    host = environment.get("HOSTNAME") or socket.gethostname()
    name = re.sub(r"[^A-Za-z0-9._-]", "-", host).strip("-._")[:100] or "replica"
    return f"{name}-{hashlib.sha256(advertise.encode()).hexdigest()[:6]}"
