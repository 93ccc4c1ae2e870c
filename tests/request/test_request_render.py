"""Templates: bounds, the sandbox, and what is not in the recordings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.request.content_format import ContentFormat
from router.request.reasons import NotUnderstoodError, Reason
from router.request.render import ChatTemplate, Rendering

USER = {"role": "user", "content": "hi"}


def _render(source: str, *messages: dict[str, Any], max_chars: int = 1000, **fields: Any) -> str:
    options: dict[str, Any] = {"tools": None, "documents": None} | fields
    rendering = Rendering(
        messages=list(messages) or [USER],
        tools=options["tools"],
        documents=options["documents"],
        add_generation_prompt=options.get("add_generation_prompt", False),
        continue_final_message=options.get("continue_final_message", False),
    )
    return ChatTemplate(source, lambda: datetime(2026, 3, 5, 7, 8)).render(rendering, {}, max_chars)  # noqa: DTZ001


def _reason(render: Callable[[], str]) -> Reason:
    with pytest.raises(NotUnderstoodError) as error:
        render()
    return error.value.reason


def test_the_clock_is_the_callers() -> None:
    """`strftime_now` prints the clock's time in the template's form."""
    assert _render("{{ strftime_now('%d %b %Y') }}") == "05 Mar 2026"


def test_output_is_bounded() -> None:
    """A template that prints without end is given up at the bound."""
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxx{% endfor %}{% endfor %}"
    assert _reason(lambda: _render(endless)) is Reason.TOO_LONG


def test_output_up_to_the_bound() -> None:
    """The bound itself is allowed."""
    assert _render("{{ messages[0].content }}", {"role": "user", "content": "x" * 10}, max_chars=10) == "x" * 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[7].content.nothing }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for a in range(10000000) %}{% endfor %}",
        "{% include 'other' %}",
    ],
)
def test_failures_are_template_errors(source: str) -> None:
    """Whatever a template raises, and whatever the sandbox forbids, is template_error."""
    assert _reason(lambda: _render(source)) is Reason.TEMPLATE_ERROR


def test_a_final_message_that_is_not_printed_whole() -> None:
    """A message that the template cuts can't be continued: the engine refuses it."""
    source = "{% for m in messages %}{{ m.content[4:] }}{% endfor %}"
    chat = [{"role": "assistant", "content": "abcdefgh"}]
    assert _reason(lambda: _render(source, *chat, continue_final_message=True)) is Reason.TEMPLATE_ERROR


def test_recursion_is_a_template_error() -> None:
    """A value nested too deep to print is no crash."""
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert _reason(lambda: _render("{{ tools | tojson }}", tools=value)) is Reason.TEMPLATE_ERROR


def test_a_message_of_an_error_is_not_kept() -> None:
    """The error says nothing of the prompt, for it may be logged."""
    with pytest.raises(NotUnderstoodError) as error:
        _render("{{ raise_exception(messages[0].content) }}", {"role": "user", "content": "my secret"})
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None


def test_no_template() -> None:
    """Broken syntax is found when the template is made."""
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat.STRING),
        ("{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p }}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% set all = messages %}{% for m in all[1:] %}{% for p in m.content %}{% endfor %}{% endfor %}", "parts"),
        ("{% for m in messages | list %}{% for p in m.content | list %}{% endfor %}{% endfor %}", "parts"),
        ("{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}", "parts"),
        ("{% for m in others %}{% for p in m.content %}{% endfor %}{% endfor %}", "string"),
        ("{% for a, m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", "string"),
        ("{{ messages[0].content }}", "string"),
        (
            "{% macro f(content) %}{% for x in content %}{{ x }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ f(m.role) }}{% endfor %}",
            "string",
        ),
    ],
)
def test_content_format(source: str, expected: str) -> None:
    """A template that loops over content gets parts, any other a string."""
    assert ChatTemplate(source).content_format == expected


EACH = "{% for m in messages %}"
PLAIN = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
)
ODD_MESSAGES = [
    {"role": "user", "content": "a", "items": "shadowed", "t_it": 1, "nested": {"role": "x", "list": [{"a": 1}]}},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"k": "v"}}}]},
]


@pytest.mark.parametrize(
    "source",
    [
        EACH + "{{ m.role }}{{ m.content or '-' }}{{ m.missing }}{{ m.missing is defined }}{% endfor %}",
        "{{ messages[0].nested.role }}{{ messages[0].nested.list[0].a }}{{ messages[0]['nested'].role }}",
        "{% for k, v in messages[0].items() %}{{ k }}{{ v }}{% endfor %}",
        "{{ messages[0].get('role') }}{{ messages[0].keys() | list }}{{ messages[0].values }}",
        "{{ messages[0].missing.deeper }}",
        "{{ messages.__class__ }}",
        "{{ messages[0].__class__.__mro__ }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{% for m in messages if m.role == 'user' %}{{ loop.first }}{{ loop.cycle('a', 'b') }}{% endfor %}",
        EACH + "{{ loop.previtem.role }}{{ loop.nextitem.role }}{{ loop.length }}{{ loop.changed(m) }}{% endfor %}",
        "{% macro show(m) %}{{ m.role.upper() }}{{ m.nested.role }}{% endmacro %}{{ show(messages[1]) }}",
        "{% set ns = namespace(a=0) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{{ ns.b }}",
        EACH + "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments.k }}{% endfor %}{% endfor %}",
        "{{ messages | map(attribute='role') | join }}{{ (messages | first).role }}{{ messages.0.role }}",
        "{{ undefined_name.role }}",
        EACH + "{% if m.missing %}y{% elif m.tool_calls and not m.absent %}z{% else %}n{% endif %}{% endfor %}",
        EACH + "{{ m.content and m.missing }}{{ m.missing and m.role }}{{ m.missing or m.absent }}{% endfor %}",
        EACH + "{{ (m.missing or m.absent) is defined }}{{ not m.missing }}{{ not (m.role and m.x) }}{% endfor %}",
        EACH + "{{ 'a' if m.missing else 'b' }}{{ (m.role and m.x) or 'c' }}{{ m.x or m.y or m.role }}{% endfor %}",
        EACH + "{% if not (loop.first and m.role == 'user') or loop.last %}{{ loop.index }}{% endif %}{% endfor %}",
        EACH + "{% if m.missing.deeper %}a{% endif %}{% endfor %}",
        EACH + "{% if m.content %}{{ m.content }}{% endif %}{% if (m.x and m.y) %}1{% endif %}{% endfor %}",
        "{% if messages.missing or messages[0].items %}a{% endif %}{% if loop.first %}b{% endif %}",
        "{% set loop = messages[0] %}{{ loop.first or 'c' }}{% if not loop.role %}d{% endif %}",
        "{{ 'abc'.role }}{{ 'abc'.upper() }}{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_short_ways_give_what_the_sandbox_gives(source: str) -> None:
    """Templates print, or fail, as in the plain sandbox."""
    try:
        expected: object = PLAIN.from_string(source).render(messages=ODD_MESSAGES)
    except Exception:
        expected = Reason.TEMPLATE_ERROR
    try:
        rendering = Rendering(ODD_MESSAGES, None, None, add_generation_prompt=False, continue_final_message=False)
        printed: object = ChatTemplate(source).render(rendering, {}, 10_000)
    except NotUnderstoodError as error:
        printed = error.reason
    assert printed == expected
