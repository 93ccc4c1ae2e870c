"""Templates that clients bring: rendered only where allowed, in a process that is killed when it takes too long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.request.client_templates import MAX_SOURCE_CHARS, ClientTemplates
from router.request.encoders.table import Options, load_text
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.request.reasons import Reason

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer"
FIRST = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def templates() -> Iterator[ClientTemplates]:
    """A renderer with time for a machine under load."""
    renderer = ClientTemplates(limit_s=2.0)
    yield renderer
    renderer.close()


def _read(templates: ClientTemplates | None, source: Any, max_chars: int = 100_000, **body: Any) -> tuple[Prompt, Any]:
    text = load_text(GOLDEN, Options(client_templates=templates, defaults={"foo": "default"}, max_chars=max_chars))
    body = {"messages": [USER], "chat_template": source, **body}
    prompt = PromptReader(lambda _: text).read("/v1/chat/completions", json.dumps(body).encode())
    return prompt, text


def test_not_run_unless_allowed() -> None:
    """Without the operator's word the request has no chain: most engines refuse it, too."""
    assert _read(None, FIRST)[0].reason is Reason.UNSUPPORTED


def test_rendered_where_allowed(templates: ClientTemplates) -> None:
    """The ids are those of what the template prints."""
    prompt, text = _read(templates, FIRST)
    assert prompt.token_ids == text.encode("user:hello;", add_special_tokens=False)


def test_prepared_for_this_template(templates: ClientTemplates) -> None:
    """Content format, special tokens, variables and the engine's default variables are as for the model's own."""
    parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    source = parts + "{{ eos_token }}{{ foo }}{{ x }}"
    prompt, text = _read(templates, source, chat_template_kwargs={"x": 7})
    assert prompt.token_ids == text.encode("[hello]<|im_end|>default7", add_special_tokens=False)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ raise_exception('no') }}",
        "{{ messages.__class__ }}{{ 1 / 0 }}",
        "{{ ''.join(['x']).__class__.mro() }}",
    ],
)
def test_broken_templates(source: str, templates: ClientTemplates) -> None:
    """A template that fails, or reaches for what the sandbox keeps from it, gives a reason."""
    assert _read(templates, source)[0].reason is Reason.TEMPLATE_ERROR


def test_a_template_that_fills_the_memory(templates: ClientTemplates) -> None:
    """The process has a bound on its memory; the next template is rendered."""
    assert _read(templates, "{{ 'x' * 4000000000 }}")[0].reason is Reason.TEMPLATE_ERROR
    assert _read(templates, FIRST)[0].token_ids


def test_a_template_that_prints_without_end(templates: ClientTemplates) -> None:
    """Output is bounded."""
    source = "{% for a in range(9999) %}{% for b in range(999) %}xxxxxxxxxx{{ a }}{% endfor %}{% endfor %}"
    assert _read(templates, source)[0].reason is Reason.TOO_LONG


def test_a_template_that_takes_too_long() -> None:
    """The process is killed at the limit, and another one renders the next template."""
    templates = ClientTemplates(limit_s=0.3)
    try:
        source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        assert _read(templates, source)[0].reason is Reason.TEMPLATE_TIMEOUT
        assert _read(templates, FIRST)[0].token_ids
    finally:
        templates.close()


@pytest.mark.parametrize("source", ["x" * (MAX_SOURCE_CHARS + 1), 5])
def test_what_is_no_template(source: Any, templates: ClientTemplates) -> None:
    """A source over the bound is not sent to the process, and what is no text is not followed."""
    assert _read(templates, source)[0].reason in (Reason.TOO_LONG, Reason.UNSUPPORTED)


@pytest.mark.parametrize("depth", [300, 950, 5_000])
def test_nested_deeply(depth: int, templates: ClientTemplates) -> None:
    """Nesting as deep as a body may have is no fault, and the next template is rendered."""
    text = load_text(GOLDEN, Options(client_templates=templates))
    nested = "[" * depth + "]" * depth
    flat = {"chat_template": "{{ tools }}", "messages": [USER], "documents": "HERE"}
    body = json.dumps(flat).replace('"HERE"', nested)
    prompt = PromptReader(lambda _: text).read("/v1/chat/completions", body.encode())
    assert prompt.reason is not Reason.INTERNAL
    assert _read(templates, FIRST)[0].token_ids


def test_closed_with_nothing_left(templates: ClientTemplates) -> None:
    """`close` ends the process; it may be called again, and before there was one."""
    own = ClientTemplates(limit_s=2.0)
    own.close()
    assert _read(own, FIRST)[0].token_ids
    process = own._process
    assert process is not None
    own.close()
    own.close()
    assert process.poll() is not None
