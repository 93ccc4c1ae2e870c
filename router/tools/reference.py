"""Write the documents' reference tables from the code itself: `python -m router.tools.reference docs/*.md`.

Each table stands between `<!-- reference:NAME -->` and `<!-- /reference:NAME -->`. A test fails where one differs.
"""

from __future__ import annotations

import argparse
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from replica.agent.metrics import metrics_table as agent_metrics_table
from router.admin.endpoints import ENDPOINTS
from router.config import RouterConfig
from router.errors import WarmrouteError
from router.telemetry.table import metrics_table
from router.tools.alerts import alerts_table

MARKED = re.compile(r"(<!-- reference:(\w+) -->\n)(.*?)(<!-- /reference:\2 -->)", re.DOTALL)


def configuration_table() -> str:
    """Return a row for each key of the router's file."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    lines += [f"| `{path}` | {default} | {meaning} |" for path, default, meaning in config_rows(RouterConfig)]
    return "\n".join(lines)


def config_rows(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, default, meaning) of every key; lists of sections are written as `name[].key`."""
    for name, field in section.model_fields.items():
        path = prefix + name
        below, is_list = _section_in(field.annotation)
        if below is not None:
            if field.description:
                yield path, _default(field), field.description
            yield from config_rows(below, f"{path}[]." if is_list else f"{path}.")
        else:
            yield path, _default(field), field.description or ""


def errors_table() -> str:
    """Return a row for each error code of the router's own."""
    import router.app  # noqa: F401 - some errors are defined beside what raises them

    lines = ["| code | status | retry is safe | meaning |", "|---|---|---|---|"]
    for error in sorted(_tree(WarmrouteError), key=lambda item: (item.http_status, item.code)):
        meaning = " ".join((error.__doc__ or "").partition("\n\n")[0].split())
        lines.append(f"| `{error.code}` | {error.http_status} | {'yes' if error.safe_to_retry else 'no'} | {meaning} |")
    return "\n".join(lines)


def endpoints_table() -> str:
    """Return a row for each admin endpoint."""
    lines = ["| endpoint | what it gives |", "|---|---|"]
    lines += [f"| `{endpoint.method} {endpoint.path}` | {endpoint.meaning} |" for endpoint in ENDPOINTS]
    return "\n".join(lines)


def commands_table() -> str:
    """Return a row for each option of every command, as `--help` has them."""
    import importlib

    from router.cli import COMMANDS

    lines = ["| command | option | meaning |", "|---|---|---|"]
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(command.module).configure(parser)
        formatter = parser._get_formatter()
        for action in parser._actions:
            if action.help is argparse.SUPPRESS:
                continue
            option = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            meaning = " ".join(formatter._expand_help(action).replace("|", "\\|").split())
            lines.append(f"| `{name}` | `{option}` | {meaning} |")
    return "\n".join(lines)


TABLES = {
    "configuration": configuration_table,
    "errors": errors_table,
    "endpoints": endpoints_table,
    "metrics": metrics_table,
    "agent_metrics": agent_metrics_table,
    "options": commands_table,
    "alerts": alerts_table,
}


def rewrite(text: str) -> str:
    """Return the text with every marked table written anew.

    Raises:
        KeyError: A mark names a table that does not exist.
    """
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]]().strip() + "\n" + found[4], text)


def _section_in(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    origin = typing.get_origin(annotation)
    for argument in typing.get_args(annotation) if origin in (tuple, typing.Union, types.UnionType) else ():
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            return argument, origin is tuple
    return None, False


def _default(field: typing.Any) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if value is PydanticUndefined:
        return ""
    if value is None or value == ():
        return "-"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _tree(error: type[WarmrouteError]) -> Iterator[type[WarmrouteError]]:
    if "code" in vars(error):
        yield error
    for below in error.__subclasses__():
        yield from _tree(below)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
