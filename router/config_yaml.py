"""YAML as configuration is to be read: what the parser lets pass and nobody can mean is a problem too.

No problem repeats a value or a line of the text: both may hold a secret.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from router.errors import Problem


class YamlError(Exception):
    """The text can't be used.

    Attributes:
        problems: What is wrong, each with its line.
    """

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def read_yaml(text: str, name: str) -> Any:
    """Return what a YAML text holds; `name` is what problems call it.

    Raises:
        YamlError: It is no YAML, holds a key twice in one mapping, or is nested too deeply to be read.
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(text)  # refuses control characters already
        data = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise YamlError([Problem("", f"{name} is not YAML{where}")]) from None
    except RecursionError:
        raise YamlError([Problem("", f"{name} is nested too deeply")]) from None
    except ValueError:  # a date or number that YAML's form allows and no calendar or computer does
        raise YamlError(
            [Problem("", f"{name} holds a date or number that can't be", "put quotes around text")]
        ) from None
    finally:
        if loader is not None:
            loader.dispose()
    if loader.repeated:
        raise YamlError([Problem("", f"{name}: {said}", "keep one") for said in loader.repeated])
    return data


class _Loader(yaml.SafeLoader):
    """Tells of keys that stand twice in one mapping: the parser would take the last and say nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line, named = key.start_mark.line + 1, (key.tag, key.value)
                if named in seen:
                    self.repeated.append(f"the key in line {line} stands in line {seen[named]} already")
                seen.setdefault(named, line)
        return super().construct_mapping(node, deep)
