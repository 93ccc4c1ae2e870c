"""A chat template, set up as transformers sets it up, with a bound on what it may print.

ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks and loop controls; `tojson` that escapes no HTML and
keeps non-ASCII text; `raise_exception`, `strftime_now`, and `{% generation %}`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.request.content_format import ContentFormat, detect
from router.request.reasons import NotUnderstoodError, Reason

_PIECES_AT_ONCE = 256
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' own: where it stands tells what the template does to spaces


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training. Here its body is printed and that is all."""

    tags = {"generation"}  # noqa: RUF012  # the name and type that jinja looks for

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller: Macro) -> str:
        return str(caller())


_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_ATTRIBUTES = frozenset("depth depth0 first index index0 last length nextitem previtem revindex revindex0".split())


_MISSING = object()


class _Generator(CodeGenerator):
    """Writes `message.role` so that it is looked up in place where the message is a dict that has it.

    So is `loop.first`; and of what is only asked whether it is true, nothing is made where it is missing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked: set[int] = set()

    def visit_If(self, node: nodes.If, frame: Frame) -> None:  # noqa: N802
        """Write a condition."""
        self._asked.update(id(branch.test) for branch in (node, *node.elif_))
        super().visit_If(node, frame)

    def visit_Not(self, node: nodes.UnaryExpr, frame: Frame) -> None:  # noqa: N802
        """Write `not a`."""
        self._asked.add(id(node.node))
        super().visit_Not(node, frame)

    def visit_Or(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        """Write `a or b`: of `a` only what is true is ever seen."""
        self._asked.update((id(node.left), id(node.right)) if id(node) in self._asked else (id(node.left),))
        super().visit_Or(node, frame)

    def visit_And(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        """Write `a and b`: what is not true may be seen, unless it is only asked."""
        if id(node) in self._asked:
            self._asked.update((id(node.left), id(node.right)))
        super().visit_And(node, frame)

    @staticmethod
    def _loop_attribute(name: str) -> str:
        return f"t_it.{name} if type(t_it) is LoopContext else " if name in _LOOP_ATTRIBUTES else ""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802  # the name that jinja looks for
        """Write one attribute; all that is no plain key of a dict is left to the environment."""
        if node.attr in _DICT_ATTRIBUTES or self.environment.is_async:
            super().visit_Getattr(node, frame)
            return
        name = repr(node.attr)
        other = f"{self._loop_attribute(node.attr)}environment.getattr(t_it, {name})"
        if id(node) in self._asked:  # None will do for what is undefined
            self.write(f"(t_it.get({name}) if type(t_it := ")
            self.visit(node.node, frame)
            self.write(f") is dict else {other})")
        else:
            self.write(f"(t_it[{name}] if type(t_it := ")
            self.visit(node.node, frame)
            self.write(f") is dict and {name} in t_it else {other})")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with short ways for what templates do most: the result is the same, in a third of the time."""

    code_generator_class = _Generator

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute` as the sandbox does: `message.role`, `loop.first`."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            value = obj.get(attribute, _MISSING)
            return self.undefined(None, obj, attribute) if value is _MISSING else value
        if kind is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a template is called with, besides the variables of the request.

    Attributes:
        messages: The conversation, as `router.request.messages` prepares it.
        tools: Tool definitions, or None.
        documents: Documents, or None.
        add_generation_prompt: Whether the prompt ends with the header of an assistant's turn.
        continue_final_message: Whether the prompt ends inside the last message.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    documents: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool


class ChatTemplate:
    """One compiled template. Safe to use from several threads.

    Attributes:
        source: Its text.
        variables: The names that it asks for.
        content_format: What it wants a message's content to be.
        knows_developer: Whether it has the role `developer`.
    """

    def __init__(self, source: str, clock: Callable[[], datetime] = datetime.now) -> None:
        """Compile a template.

        Args:
            source: Its text.
            clock: What `strftime_now` asks: local time, as in the engine.

        Raises:
            jinja2.TemplateSyntaxError: When it is no template.
        """
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            autoescape=False,  # prompts are no HTML
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: clock().strftime(form)
        self._template = environment.from_string(source)
        self.source = source
        tree = environment.parse(source)
        self.variables: frozenset[str] = frozenset(meta.find_undeclared_variables(tree))
        self.content_format: ContentFormat = detect(tree)
        self.knows_developer: bool = '"developer"' in source or "'developer'" in source

    def render(self, rendering: Rendering, variables: Mapping[str, Any], max_chars: int) -> str:
        """Return the prompt's text.

        Args:
            rendering: Messages and what goes with them.
            variables: Special tokens and the request's own variables.
            max_chars: A longer text is given up.

        Raises:
            NotUnderstoodError: TEMPLATE_ERROR when the template fails or refuses, TOO_LONG.
        """
        try:
            if not rendering.messages:
                raise ValueError("no messages")
            if rendering.continue_final_message:
                return self._continued(rendering, variables, max_chars)
            return self._print(rendering.messages, rendering, variables, max_chars)
        except NotUnderstoodError:
            raise
        except Exception:  # a template can raise anything; its message may quote the prompt, so it is dropped
            raise NotUnderstoodError(Reason.TEMPLATE_ERROR) from None

    def _print(
        self, messages: list[dict[str, Any]], rendering: Rendering, variables: Mapping[str, Any], max_chars: int
    ) -> str:
        given = {
            "messages": messages,
            "tools": rendering.tools,
            "documents": rendering.documents,
            "add_generation_prompt": rendering.add_generation_prompt,
            **variables,
        }
        # Below `Template.generate`, which does the same and makes a readable traceback of errors.
        printing = self._template.root_render_func(self._template.new_context(given))
        text = ""
        while pieces := list(itertools.islice(printing, _PIECES_AT_ONCE)):
            text += "".join(pieces)
            if len(text) > max_chars:
                raise NotUnderstoodError(Reason.TOO_LONG)
        return text

    def _continued(self, rendering: Rendering, variables: Mapping[str, Any], max_chars: int) -> str:
        """Print the messages with a tag after the last one's text, and cut the prompt off there."""
        if rendering.add_generation_prompt or "content" not in self.source:
            raise ValueError("the final message can't be continued")
        *before, last = rendering.messages
        content = last["content"]
        if isinstance(content, list):
            place = max(index for index, part in enumerate(content) if "text" in part)
            text = content[place]["text"]
            tagged: Any = [*content[:place], {**content[place], "text": text + _TAG}, *content[place + 1 :]]
        else:
            text, tagged = content, content + _TAG
        printed = self._print([*before, {**last, "content": tagged}], rendering, variables, max_chars)
        if text.strip() not in printed:
            raise ValueError("the template drops a part of the final message")
        cut = printed.rindex(_TAG.strip())
        if printed.startswith(_TAG, cut):
            return printed[:cut]
        return printed[:cut].rstrip()  # the template trims messages, so the message's own end was trimmed too
