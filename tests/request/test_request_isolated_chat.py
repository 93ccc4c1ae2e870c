"""A model's own templates in a process apart: the same prompts, and no way to stall the router."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.request.client_templates import ClientTemplates
from router.request.encoders.table import Options, load_text
from router.request.reader import PromptReader
from router.request.reasons import Reason
from router.request.text import Text

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER]},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "so"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "media": {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]},
    "effort": {"messages": [USER], "reasoning_effort": "low", "chat_template_kwargs": {"a": [1]}},
}


@pytest.fixture(scope="module")
def process() -> Iterator[ClientTemplates]:
    """A renderer with time for a machine under load."""
    renderer = ClientTemplates(limit_s=5.0)
    yield renderer
    renderer.close()


def _prompt(text: Text, path: str, body: dict[str, Any]) -> tuple[list[int] | None, Any]:
    prompt = PromptReader(lambda _: text).read(path, json.dumps(body).encode())
    return prompt.token_ids, prompt.reason


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("defaults", [{}, {"enable_thinking": False}])
def test_the_prompt_is_the_one_of_rendering_here(
    golden: Path, process: ClientTemplates, name: str, defaults: dict[str, Any]
) -> None:
    """Tools, continued messages, media and variables, with the engine's default variables."""
    here = load_text(golden / "tokenizer", Options(defaults=defaults))
    apart = load_text(golden / "tokenizer", Options(defaults=defaults, isolated=process))
    expected = _prompt(here, "/v1/chat/completions", BODIES[name])
    assert expected[0] is not None
    assert _prompt(apart, "/v1/chat/completions", BODIES[name]) == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [USER, {"role": "system", "content": "s"}, USER], "max_tokens": 1}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 1, "thinking": {"type": "disabled"}}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
def test_the_other_apis_too(golden: Path, process: ClientTemplates, path: str, body: dict[str, Any]) -> None:
    """What they find out of the templates is found out in the process."""
    here, apart = (load_text(golden / "tokenizer", Options(isolated=each)) for each in (None, process))
    expected = _prompt(here, path, body)
    assert expected[0] is not None
    assert _prompt(apart, path, body) == expected


def test_a_template_without_end_costs_its_request_alone(golden: Path, tmp_path: Path) -> None:
    """The process is killed at the limit; another template is rendered by the next one."""
    folder = tmp_path / "model"
    shutil.copytree(golden / "tokenizer", folder)
    endless = "{% if tools %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}x"
    (folder / "chat_template.jinja").write_text(endless)
    process = ClientTemplates(limit_s=0.5)
    try:
        text = load_text(folder, Options(isolated=process))
        assert _prompt(text, "/v1/chat/completions", BODIES["tools"])[1] is Reason.TEMPLATE_TIMEOUT
        assert _prompt(text, "/v1/chat/completions", BODIES["chat"])[0]
    finally:
        process.close()
