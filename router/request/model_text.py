"""A model's own text: its tokenizer and chat templates, loaded from the folder that the engine loads them from.

Follows what vLLM 0.32 does with transformers 5 and a `tokenizer.json`. Tokenizers that are Python code are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import AddedToken, Tokenizer

from router.request import bodies, messages
from router.request.reasons import NotUnderstoodError, Reason
from router.request.render import ChatTemplate, Rendering

MAX_CHARS = 8 * 2**20
"""Longest text that is rendered and tokenised: two million tokens and a few seconds."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Arguments of transformers' own function: a request's variables of these names never reach the template.
_NO_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
_REFUSED_VARIABLES = ("chat_template", "conversation", "messages", "return_assistant_tokens_mask", "tokenize")
_UNSET = (None, "auto")  # the engine treats a variable with one of these as not given
_DEFAULT, _TOOL_USE, _PROCESSOR = "default", "tool_use", "processor"


class TokenizerError(Exception):
    """A tokenizer folder can't be used; the message says what is missing and what to do, in one line."""


class ModelText:
    """Renders chats and encodes text as one model's engine does. Immutable, safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: Mapping[str, ChatTemplate],
        special_tokens: Mapping[str, str],
        max_chars: int = MAX_CHARS,
    ) -> None:
        """Put the parts together; `load` does it from a folder.

        Args:
            tokenizer: With truncation and padding off.
            templates: Chat templates by name: `default`, `tool_use` (used when there are tools), `processor` (used
                when there are none).
            special_tokens: `bos_token`, `eos_token`... for the templates.
            max_chars: Longest text that is rendered or encoded.
        """
        self._tokenizer = tokenizer
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._special_count = tokenizer.num_special_tokens_to_add(False)
        self.max_chars = max_chars

    def render_chat(self, body: Mapping[str, Any]) -> str:
        """Return the prompt's text of a chat completion body.

        Raises:
            NotUnderstoodError: With the reason.
        """
        given = body.get("chat_template_kwargs")
        given = {} if given is None else given
        if not isinstance(given, dict):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        if body.get("chat_template") is not None or any(given.get(name) for name in _REFUSED_VARIABLES):
            raise NotUnderstoodError(Reason.UNSUPPORTED)
        variables = _variables(body, given)
        tools = variables.get("tools") or messages.tools(body.get("tools"))
        documents = variables.get("documents")
        for items in (tools, documents):
            if items is not None and not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
                raise NotUnderstoodError(Reason.BAD_REQUEST)
        template = self._template(tools)
        conversation = messages.conversation(body.get("messages"), template.content_format)
        if not template.knows_developer and any(message["role"] == "developer" for message in conversation):
            conversation = messages.developer_as_system(conversation)
        rendering = Rendering(
            messages=conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=bodies.flag(body.get("add_generation_prompt"), default=True),
            continue_final_message=bodies.flag(body.get("continue_final_message"), default=False),
        )
        reach = {key: value for key, value in variables.items() if key in template.variables - _NO_VARIABLES}
        return template.render(rendering, {**self._special_tokens, **reach}, self.max_chars)

    def _template(self, tools: object) -> ChatTemplate:
        names = (_PROCESSOR, _DEFAULT) if tools is None else (_TOOL_USE, _DEFAULT)
        for name in names:
            if name in self._templates:
                return self._templates[name]
        raise NotUnderstoodError(Reason.NO_TEMPLATE)

    def encode(
        self, text: str, add_special_tokens: bool, keep_tokens: int | None = None, keep_side: str | None = None
    ) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: The prompt.
            add_special_tokens: Whether the tokenizer's own BOS and the like are added.
            keep_tokens: `truncate_prompt_tokens`: as many are kept, special tokens included; None: all.
            keep_side: `truncation_side`: `left` keeps the last tokens, `right` the first ones, of all with the special
                ones among them. None: the last ones, and the special tokens are always kept.

        Raises:
            NotUnderstoodError: TOO_LONG, TOKENIZER_ERROR.
        """
        if len(text) > self.max_chars:
            raise NotUnderstoodError(Reason.TOO_LONG)
        try:
            # The batch call lets other threads run meanwhile, and it computes no offsets; `encode` does neither.
            if keep_tokens is None or keep_side is not None:
                [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
                return kept(encoding.ids, keep_tokens, keep_side)
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            room = keep_tokens - (self._special_count if add_special_tokens else 0)
            if room < 0:
                raise NotUnderstoodError(Reason.BAD_REQUEST)
            encoding.truncate(room, direction="left")
            ids: list[int] = self._tokenizer.post_process(encoding, add_special_tokens=add_special_tokens).ids
            return ids
        except (NotUnderstoodError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the Rust code is no Exception
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None


def kept(token_ids: list[int], keep_tokens: int | None, keep_side: str | None) -> list[int]:
    """Return what truncation leaves of token ids: the last ones unless `keep_side` is `right`."""
    if keep_tokens is None or keep_tokens >= len(token_ids):
        return token_ids
    if keep_side == "right" or keep_tokens == 0:
        return token_ids[:keep_tokens]
    return token_ids[-keep_tokens:]


def _variables(body: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a request: its `chat_template_kwargs`, and the fields that override them."""
    effort = body.get("reasoning_effort")
    fields = {"documents": body.get("documents"), "reasoning_effort": effort}
    if effort is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = effort != "none"
    merged = {**given, **{key: value for key, value in fields.items() if value not in _UNSET}}
    return {key: value for key, value in merged.items() if value not in _UNSET}


def load(
    folder: Path,
    template_file: Path | None = None,
    clock: Callable[[], datetime] = datetime.now,
    max_chars: int = MAX_CHARS,
) -> ModelText:
    """Load a model's text from a folder.

    Args:
        folder: With `tokenizer.json`, and `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`,
            `additional_chat_templates/` and `chat_template.json` where the model has them.
        template_file: The template of an engine that was started with `--chat-template`.
        clock: What a template's `strftime_now` asks.
        max_chars: Longest text that is rendered or encoded.

    Raises:
        TokenizerError: When something is missing or broken.
    """
    if not folder.is_dir():
        raise TokenizerError(f"tokenizer folder {folder} does not exist: give the folder that holds tokenizer.json")
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(
            f"{folder} has no tokenizer.json: copy the model's tokenizer files there (its weights are not needed)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{file} can't be read ({error}): copy it again from the model") from None
    config = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    special_tokens = {name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None}
    _add_missing(tokenizer, config, special_tokens)
    sources = _template_sources(folder, config, template_file)
    templates = {}
    for name, source in sources.items():
        try:
            templates[name] = ChatTemplate(source, clock)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TokenizerError(f"chat template `{name}` of {template_file or folder} is broken: {error}") from None
    return ModelText(tokenizer, templates, special_tokens, max_chars)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file} can't be read ({error}): copy it again from the model") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{file} is no JSON object: copy it again from the model")
    return value


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"chat template {file} can't be read: {error}") from None


def _token_text(token: object) -> str | None:
    """Return a token's text; files hold it as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_missing(tokenizer: Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Add the tokens that the configuration names and `tokenizer.json` does not, as transformers does."""
    known = {str(token.content) for token in tokenizer.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder")
    items = sorted(listed.items(), key=lambda item: int(item[0])) if isinstance(listed, dict) else []
    wanted = [AddedToken(**{k: v for k, v in token.items() if k != "__type"}) for _, token in items]
    more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    more = list(more.values()) if isinstance(more, dict) else more
    for text in (*special_tokens.values(), *map(_token_text, more)):
        if text is not None and text not in {token.content for token in wanted}:
            wanted.append(AddedToken(text, special=True, normalized=False))
    tokenizer.add_tokens([token for token in wanted if token.content not in known])


def _template_sources(folder: Path, config: Mapping[str, Any], template_file: Path | None) -> dict[str, str]:
    if template_file is not None:
        return {_DEFAULT: _read_text(template_file)}
    sources: dict[str, str] = {}
    single = folder / "chat_template.jinja"
    if single.is_file():
        sources[_DEFAULT] = _read_text(single)
    more = folder / "additional_chat_templates"
    if more.is_dir():
        sources |= {file.stem: _read_text(file) for file in sorted(more.glob("*.jinja"))}
    if not sources:
        given = config.get("chat_template")
        if isinstance(given, str):
            sources[_DEFAULT] = given
        elif isinstance(given, list):
            sources |= {entry["name"]: entry["template"] for entry in given if isinstance(entry, dict)}
    processor = _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(processor, str) and not single.is_file():
        sources[_PROCESSOR] = processor
    return {name: source for name, source in sources.items() if name in (_DEFAULT, _TOOL_USE, _PROCESSOR)}
