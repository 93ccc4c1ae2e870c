"""From a YAML file and the environment to a checked configuration: every mistake is reported at once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from router.config import ModelConfig, RouterConfig, is_loopback, split_address
from router.config_discovery import discovery_problems
from router.config_names import name_problems
from router.config_tenants import tenant_problems
from router.config_yaml import YamlError, read_yaml
from router.errors import ConfigurationError, Problem
from router.kv.addresses import normalised_url
from router.kv.log_lines import conceal
from router.tls import contexts_of

LOG = logging.getLogger("warmroute.config")
PREFIX = "WARMROUTE_"
AGENTS_PREFIX = "WARMROUTE_AGENT_"
SECRETS = (("admin", "token"), ("registration", "secret"), ("isolation", "secret"), ("upstream", "api_key"))
"""Keys that hold secrets: each may be a file (`..._file`), and none is ever shown."""
_OF_THE_PROCESS = frozenset({"WARMROUTE_COMPILED", "WARMROUTE_NATIVE"})
"""Read elsewhere, before there is a configuration (`router.native`)."""
_OF_A_SERVICE = re.compile(r"WARMROUTE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT.*|PORT.*)|WARMROUTE_PORT.*")
"""What Kubernetes sets in every pod beside a Service whose name begins with warmroute."""
ModelsCheck = Callable[[Sequence[tuple[int, ModelConfig]]], list[Problem]]
"""Checks what models need outside the file (their tokenizers), given each valid model with its position."""


def load(
    path: Path,
    environ: Mapping[str, str] | None = None,
    check_models: ModelsCheck | None = None,
    *,
    is_silent: bool = False,
) -> RouterConfig:
    """Read the file, lay the environment over it, and check everything.

    `WARMROUTE_PLACEMENT__POLICY=random` sets `placement.policy`. The value of a key that holds text is taken as it
    stands, any other is YAML. Secrets may be files (`admin.token_file`, `registration.secret_file`...).

    Args:
        is_silent: Nothing is logged of variables that mean nothing: that was said, or will be.

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
        data = read_yaml(text, str(path))
    except YamlError as error:
        raise ConfigurationError(error.problems) from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigurationError([Problem("", f"{path} must be a mapping of keys", "begin with `listen:`")])
    return parse(data, os.environ if environ is None else environ, check_models, is_silent=is_silent)


def parse(
    data: dict[str, Any],
    environ: Mapping[str, str],
    check_models: ModelsCheck | None = None,
    *,
    is_silent: bool = False,
) -> RouterConfig:
    """Check a mapping as `load` does; `data` is changed by what the environment and secret files set.

    Raises:
        ConfigurationError: With every problem found.
    """
    problems = _overlay_environment(data, environ, is_silent)
    problems += _read_secret_files(data)
    problems += _read_tenants(data)
    config = None
    try:
        config = RouterConfig.model_validate(data)
    except ValidationError as error:
        problems += _problems_of(error)
    problems += [
        *_nowhere_to_send(data),
        *_named_twice(data),
        *_public_admin(data),
        *_name_problems(data),
        *_tenant_problems(data),
    ]
    if check_models is not None:
        problems += check_models(list(_valid_models(data)))
    if config is not None:
        problems += _tls_problems(config)
        problems += [Problem(*found) for found in discovery_problems(config.discovery, environ)]
    if problems or config is None:
        raise ConfigurationError(problems)
    conceal(*(getattr(getattr(config, section), key) for section, key in SECRETS))
    return config


def _name_problems(data: dict[str, Any]) -> Iterable[Problem]:
    models = data.get("models")
    for found in name_problems(models if isinstance(models, list | tuple) else (), data.get("splits")):
        yield Problem(*found)


def _tls_problems(config: RouterConfig) -> list[Problem]:
    problems = []
    try:
        contexts_of(config)
    except ConfigurationError as error:
        problems = error.problems
    if config.admin.tls is not None and config.admin.listen is None:
        problems.append(
            Problem("admin.tls", "is set without `admin.listen`", "admin shares the address of `listen`, and `tls`")
        )
    return problems


def _overlay_environment(data: dict[str, Any], environ: Mapping[str, str], is_silent: bool) -> list[Problem]:
    problems: list[Problem] = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable.startswith(AGENTS_PREFIX):
            continue
        keys = variable.removeprefix(PREFIX).lower().split("__")
        if keys[0] not in RouterConfig.model_fields:
            if not is_silent and variable not in _OF_THE_PROCESS and not _OF_A_SERVICE.fullmatch(variable):
                LOG.warning("the environment variable %s names no key of the configuration and is ignored", variable)
            continue
        try:
            value = text or None if _is_text(keys) else read_yaml(text, "the value")
        except YamlError as error:
            problems += [Problem(variable, problem.message) for problem in error.problems]
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


def _is_text(keys: Sequence[str]) -> bool:
    """Tell whether the key of this path holds text. YAML would make numbers, dates and booleans of some texts."""
    model: type[BaseModel] = RouterConfig
    for key in keys[:-1]:
        field = model.model_fields.get(key)
        kinds = _kinds(field.annotation) if field is not None else ()
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if section is None:
            return False
        model = section
    field = model.model_fields.get(keys[-1])
    return field is not None and any(kind in (str, Path) for kind in _kinds(field.annotation))


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return the members of `X | None`, or the type alone."""
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


def _read_secret_files(data: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    for section, key in SECRETS:
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


def _read_tenants(data: dict[str, Any]) -> list[Problem]:
    """Put the list of a tenants' file in its place, so that its mistakes are told with all others."""
    if isinstance(data.get("tenants"), str):
        data["tenants_file"], data["tenants"] = data["tenants"], None
    if data.get("tenants_file") is None:
        return []
    if data.get("tenants") is not None:
        return [Problem("tenants_file", "both `tenants` and `tenants_file` are set", "keep one")]
    file = Path(str(data["tenants_file"]))
    try:
        listed = read_yaml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return [Problem("tenants_file", f"can't read {file}: {reason}", "name a readable file")]
    except YamlError as error:
        return list(error.problems)
    data["tenants"] = listed["tenants"] if isinstance(listed, dict) and set(listed) == {"tenants"} else listed
    if not isinstance(data["tenants"], list):
        data["tenants"] = None
        return [Problem("tenants_file", f"{file} must be a list of tenants", "begin each with `- name:`")]
    return []


def _tenant_problems(data: dict[str, Any]) -> Iterable[Problem]:
    tenants = data.get("tenants")
    if not isinstance(tenants, list | tuple):
        return
    if not tenants:
        # Taken for no tenants, it would open the router to everyone.
        yield Problem("tenants", "names nobody: every request would be refused", "leave it out to serve anyone")
    isolation = data.get("isolation")
    has_secret = isinstance(isolation, dict) and any(isolation.get(key) for key in ("secret", "secret_file"))
    yield from (Problem(*found) for found in tenant_problems(tenants, has_secret))


def _nowhere_to_send(data: dict[str, Any]) -> Iterable[Problem]:
    if not data.get("replicas") and data.get("redis") is None and not data.get("discovery"):
        message = "names no `replicas`, no `redis` and no `discovery`: there is nowhere to send requests"
        yield Problem("", message, "set one of them")


def _named_twice(data: dict[str, Any]) -> Iterable[Problem]:
    for section, key in (("models", "name"), ("replicas", "url"), ("replicas", "id")):
        seen: set[str] = set()
        items = data.get(section)
        for position, item in enumerate(items if isinstance(items, list | tuple) else ()):
            value = item.get(key) if isinstance(item, dict) else None
            if value is None:
                continue
            text = _one_spelling(str(value)) if key == "url" else str(value)
            if text in seen:
                yield Problem(f"{section}.{position}.{key}", f"this {key} is named twice", f"give each its own {key}")
            seen.add(text)


def _one_spelling(url: str) -> str:
    try:
        return normalised_url(url)
    except ValueError:
        return url


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
    if data.get("tenants") is not None or data.get("tenants_file") is not None:
        remedy = "set `admin.listen` (an address that tenants can't reach) or `admin.token`"
        yield Problem("admin", "decisions and metrics would be open to every tenant", remedy)
    elif not is_loopback(host):
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
    "extra_forbidden": ("is not a known key", "see the table in docs/configuration.md"),
    "missing": ("is missing", ""),
    "tuple_type": ("must be a list", "begin each item with a dash"),
    "model_type": ("must be a section of keys", ""),
    "model_attributes_type": ("must be a section of keys", ""),
    "dict_type": ("must be a section of keys", ""),
}


def _problems_of(error: ValidationError) -> list[Problem]:
    items = error.errors(include_url=False, include_input=False)
    # A list with a mistake in each of its items counts as empty, too: that is no mistake of its own.
    broken = {item["loc"][:1] for item in items if len(item["loc"]) > 1}
    return [_problem(item) for item in items if item["type"] != "too_short" or item["loc"] not in broken]


def _problem(item: Any) -> Problem:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] in _REMEDIES:
        return Problem(where, *_REMEDIES[item["type"]])
    message = str(item["msg"]).removeprefix("Value error, ")
    return Problem(where, message[:1].lower() + message[1:])


def warnings_of(config: RouterConfig) -> list[str]:
    """Return what is allowed, and may not be meant; a sentence each, for the log."""
    listen = config.admin.listen
    if listen is None or config.admin.token is not None or is_loopback(split_address(listen)[0]):
        return []
    return [f"admin.listen is {listen} without `admin.token`: whoever reaches it reads decisions and metrics"]
