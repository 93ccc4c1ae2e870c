"""From a YAML file and the environment to a checked configuration: every mistake is reported at once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from router.config import ModelConfig, RouterConfig, is_loopback, split_address
from router.errors import ConfigurationError, Problem

LOG = logging.getLogger("warmroute.config")
PREFIX = "WARMROUTE_"
AGENTS_PREFIX = "WARMROUTE_AGENT_"
_OF_A_SERVICE = re.compile(r"WARMROUTE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT.*|PORT.*)|WARMROUTE_PORT.*")
"""What Kubernetes sets in every pod beside a Service whose name begins with warmroute."""
ModelsCheck = Callable[[Sequence[tuple[int, ModelConfig]]], list[Problem]]
"""Checks what models need outside the file (their tokenizers), given each valid model with its position."""


def load(path: Path, environ: Mapping[str, str] | None = None, check_models: ModelsCheck | None = None) -> RouterConfig:
    """Read the file, lay the environment over it, and check everything.

    `WARMROUTE_PLACEMENT__POLICY=random` sets `placement.policy`; values are YAML. Secrets may be files
    (`admin.token_file`, `registration.secret_file`).

    Raises:
        ConfigurationError: With every problem found.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = Problem("", f"can't read {path}: {error.strerror}", "name a YAML file with --config")
        raise ConfigurationError([problem]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError([Problem("", f"{path} is not UTF-8 text")]) from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        # The parser's own message repeats the line, which may hold a secret.
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigurationError([Problem("", f"{path} is not YAML{where}")]) from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigurationError([Problem("", f"{path} must be a mapping of keys", "begin with `listen:`")])
    return parse(data, os.environ if environ is None else environ, check_models)


def parse(data: dict[str, Any], environ: Mapping[str, str], check_models: ModelsCheck | None = None) -> RouterConfig:
    """Check a mapping as `load` does; `data` is changed by what the environment and secret files set.

    Raises:
        ConfigurationError: With every problem found.
    """
    problems = _overlay_environment(data, environ)
    problems += _read_secret_files(data)
    config = None
    try:
        config = RouterConfig.model_validate(data)
    except ValidationError as error:
        problems += [_problem(item) for item in error.errors(include_url=False, include_input=False)]
    problems += [*_nowhere_to_send(data), *_named_twice(data), *_public_admin(data)]
    if check_models is not None:
        problems += check_models(list(_valid_models(data)))
    if problems or config is None:
        raise ConfigurationError(problems)
    return config


def _overlay_environment(data: dict[str, Any], environ: Mapping[str, str]) -> list[Problem]:
    problems: list[Problem] = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable.startswith(AGENTS_PREFIX):
            continue
        keys = variable.removeprefix(PREFIX).lower().split("__")
        if keys[0] not in RouterConfig.model_fields:
            if not _OF_A_SERVICE.fullmatch(variable):
                LOG.warning("the environment variable %s names no key of the configuration and is ignored", variable)
            continue
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            problems.append(Problem(variable, "the value is not YAML"))
            continue
        target = data
        for key in keys[:-1]:
            below = target.get(key)
            if below is None:
                below = target[key] = {}
            if key == "redis" and isinstance(below, str):
                below = target[key] = {"url": below}
            if not isinstance(below, dict):
                problems.append(Problem(variable, f"`{key}` is not a section", "lists are set as a whole, in YAML"))
                break
            target = below
        else:
            target[keys[-1]] = value
    return problems


def _read_secret_files(data: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    for section, key in (("admin", "token"), ("registration", "secret")):
        part = data.get(section)
        if not isinstance(part, dict) or part.get(f"{key}_file") is None:
            continue
        path = f"{section}.{key}_file"
        if part.get(key) is not None:
            problems.append(Problem(path, f"both `{key}` and `{key}_file` are set", "keep one"))
            continue
        file = Path(str(part[f"{key}_file"]))
        try:
            part[key] = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            problems.append(Problem(path, f"can't read {file}: {reason}", "name a readable file"))
    return problems


def _nowhere_to_send(data: dict[str, Any]) -> Iterable[Problem]:
    if not data.get("replicas") and data.get("redis") is None:
        yield Problem("", "names no `replicas` and no `redis`: there is nowhere to send requests", "set one of them")


def _named_twice(data: dict[str, Any]) -> Iterable[Problem]:
    for section, key in (("models", "name"), ("replicas", "url"), ("replicas", "id")):
        seen: set[str] = set()
        items = data.get(section)
        for position, item in enumerate(items if isinstance(items, list | tuple) else ()):
            value = item.get(key) if isinstance(item, dict) else None
            if value is None:
                continue
            text = str(value).rstrip("/").lower() if key == "url" else str(value)
            if text in seen:
                yield Problem(f"{section}.{position}.{key}", f"this {key} is named twice", f"give each its own {key}")
            seen.add(text)


def _public_admin(data: dict[str, Any]) -> Iterable[Problem]:
    listen = data.get("listen", RouterConfig.model_fields["listen"].default)
    admin = data.get("admin") or {}
    if not isinstance(admin, dict) or admin.get("listen") is not None or admin.get("token") is not None:
        return
    if admin.get("token_file") is not None:
        return
    try:
        host, _ = split_address(str(listen))
    except ValueError:
        return
    if not is_loopback(host):
        remedy = "set `admin.listen` (an address that clients can't reach) or `admin.token`"
        yield Problem("admin", f"decisions and metrics would be open to clients on {listen}", remedy)


def _valid_models(data: dict[str, Any]) -> Iterable[tuple[int, ModelConfig]]:
    models = data.get("models")
    for position, item in enumerate(models if isinstance(models, list | tuple) else ()):
        try:
            yield position, ModelConfig.model_validate(item)
        except ValidationError:
            continue


_REMEDIES = {
    "extra_forbidden": ("is not a known key", "see the configuration table in README.md"),
    "missing": ("is missing", ""),
    "tuple_type": ("must be a list", "begin each item with a dash"),
    "model_type": ("must be a section of keys", ""),
    "model_attributes_type": ("must be a section of keys", ""),
    "dict_type": ("must be a section of keys", ""),
}


def _problem(item: Any) -> Problem:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] in _REMEDIES:
        return Problem(where, *_REMEDIES[item["type"]])
    message = str(item["msg"]).removeprefix("Value error, ")
    return Problem(where, message[:1].lower() + message[1:])
