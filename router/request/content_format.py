"""Whether a chat template wants a message's content as one string or as a list of parts.

The engine looks at the template's syntax tree: a template that loops over a message's content gets parts, any other one
gets a string. This follows the same rules (vLLM 0.32, `--chat-template-content-format auto`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum

from jinja2 import nodes


class ContentFormat(StrEnum):
    """What a template gets as `message.content`: `STRING` (parts joined by newlines) or `PARTS` (a list of dicts)."""

    STRING = "string"
    PARTS = "parts"


def detect(tree: nodes.Template) -> ContentFormat:
    """Return the format that a template's syntax tree asks for."""
    try:
        loops = next(_content_loops(tree), None)
    except _UnusualTargetError:
        return ContentFormat.STRING
    return ContentFormat.STRING if loops is None else ContentFormat.PARTS


class _UnusualTargetError(Exception):
    """A loop or assignment unpacks what it gets, which the engine's rules give up on."""


def _names(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether a node is the variable (or its `key`), perhaps filtered, tested or sliced."""
    if isinstance(node, (nodes.Filter, nodes.Test)):
        return _names(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _names(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return _names_exactly(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _names_exactly(node.node, name) and node.attr == key


def _names_exactly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _UnusualTargetError
    return node.name


def _message_lists(tree: nodes.Template) -> list[str]:
    """Return `messages` and every variable that is set from it or from a part of it."""
    found, open_names = ["messages"], deque(["messages"])
    while open_names:
        name = open_names.popleft()
        for assignment in tree.find_all(nodes.Assign):
            if _names(assignment.node, name):
                alias = _target(assignment.target)
                if alias not in found:
                    found.append(alias)
                    open_names.append(alias)
    return found


def _message_names(tree: nodes.Template) -> list[str]:
    lists = _message_lists(tree)
    loops = tree.find_all(nodes.For)
    return [_target(loop.target) for loop in loops if any(_names(loop.iter, name) for name in lists)]


def _macro_parameters(tree: nodes.Template, macro: nodes.Macro, messages: list[str]) -> set[str]:
    """Return the parameters of a macro that are given a message's content somewhere."""
    names = [argument.name for argument in macro.args]
    given: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        values = [*zip(names, call.args, strict=False), *((item.key, item.value) for item in call.kwargs)]
        given |= {
            name
            for name, value in values
            if name in names and any(_names(value, message, "content") for message in messages)
        }
    return given


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = _message_names(tree)
    in_macros: set[int] = set()
    parameters_at: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        parameters = _macro_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if parameters:
                parameters_at[id(loop)] = parameters
    for loop in tree.find_all(nodes.For):
        iterated = loop.iter
        by_name = isinstance(iterated, nodes.Name) and (
            iterated.name in parameters_at.get(id(loop), ())
            or (iterated.name == "content" and id(loop) not in in_macros)
        )
        if by_name or any(_names(iterated, message, "content") for message in messages):
            _target(loop.target)
            yield loop
