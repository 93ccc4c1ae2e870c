"""A model's own chat templates, from the files that the engine reads them from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import jinja2

from router.request.chat import DEFAULT, PROCESSOR, TOOL_USE
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.files import read_json, read_text
from router.request.render import ChatTemplate

MAX_TEMPLATE_CHARS = 2**20
"""Longest template that is compiled; the longest in use have 20,000 characters."""


def load_templates(
    folder: Path, template_file: Path | None = None, clock: Callable[[], datetime] = datetime.now
) -> dict[str, ChatTemplate]:
    """Return the templates of a model by name (`default`, `tool_use`, `processor`); none where it has none.

    Args:
        folder: With `tokenizer_config.json`, `chat_template.jinja`, `additional_chat_templates/` and
            `chat_template.json` where the model has them.
        template_file: The template of an engine that was started with `--chat-template`.
        clock: What a template's `strftime_now` asks.

    Raises:
        TokenizerError: When one is broken or too long.
    """
    templates = {}
    for name, source in template_sources(folder, template_file).items():
        where = f"chat template `{name}` of {template_file or folder}"
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TokenizerError(f"{where} is longer than {MAX_TEMPLATE_CHARS} characters")
        try:
            templates[name] = ChatTemplate(source, clock)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TokenizerError(f"{where} is broken: {error}") from None
    return templates


def template_sources(folder: Path, template_file: Path | None = None) -> dict[str, str]:
    """Return the templates' texts by name; see `load_templates`.

    Raises:
        TokenizerError: A file can't be read.
    """
    if template_file is not None:
        return {DEFAULT: read_text(template_file)}
    sources: dict[str, str] = {}
    single = folder / "chat_template.jinja"
    if single.is_file():
        sources[DEFAULT] = read_text(single)
    more = folder / "additional_chat_templates"
    if more.is_dir():
        sources |= {file.stem: read_text(file) for file in sorted(more.glob("*.jinja"))}
    if not sources:
        given = read_json(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(given, str):
            sources[DEFAULT] = given
        elif isinstance(given, list):
            sources |= {entry["name"]: entry["template"] for entry in given if isinstance(entry, dict)}
    processor = read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(processor, str) and not single.is_file():
        sources[PROCESSOR] = processor
    return {name: source for name, source in sources.items() if name in (DEFAULT, TOOL_USE, PROCESSOR)}
