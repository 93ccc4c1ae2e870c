"""The model's text: its tokenizer, and its chat template as the engine renders it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

from replica.errors import UsageError
from replica.simengine.refusals import Refusal, bad_schema

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_EMPTY = "Cannot apply chat template to an empty conversation. Provide at least one message."


class Text:
    """Tokenizer and chat template of one folder.

    Attributes:
        vocabulary: Number of token ids.
        longest_token: Characters of its longest token, as the vocabulary spells it.
        eos_token_id: The token that ends an answer, or None.
        model_len: Longest sequence the model's configuration allows, or None where it does not say.
    """

    def __init__(self, folder: Path) -> None:
        """Load a folder with tokenizer.json, tokenizer_config.json and chat_template.jinja (or the template inside).

        Raises:
            UsageError: The folder or a file is missing or can't be read.
        """
        if not folder.is_dir():
            raise UsageError([f"--tokenizer: {folder} is not a folder; give one with tokenizer.json in it"])
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UsageError([f"--tokenizer: {file} is missing; save the model's fast tokenizer there"])
        try:
            self.tokenizer = Tokenizer.from_file(str(file))
            configuration = _json(folder / "tokenizer_config.json")
            model = _json(folder / "config.json")
        except Exception as error:  # the tokenizers library raises bare Exception
            raise UsageError([f"--tokenizer: {folder} can't be read ({error}); save the tokenizer again"]) from error
        self.vocabulary = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self.longest_token = max(map(len, self.tokenizer.get_vocab(with_added_tokens=True)), default=1)
        self.special = {name: _content(configuration[name]) for name in _SPECIAL if configuration.get(name)}
        eos = self.special.get("eos_token")
        self.eos_token_id = self.tokenizer.token_to_id(eos) if eos else None
        length = model.get("max_position_embeddings")
        self.model_len = length if isinstance(length, int) else None
        self._template = _template(folder, configuration)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        # The same ids as encode(), without the offsets: a third quicker.
        ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        text: str = self.tokenizer.decode(token_ids)
        return text

    def token_strings(self, token_ids: list[int]) -> list[str]:
        """Return each token as the vocabulary spells it."""
        return [self.tokenizer.id_to_token(token) or "" for token in token_ids]

    def render(self, body: dict[str, Any]) -> str:
        """Return a chat body as the prompt that the template makes of it.

        Raises:
            Refusal: There is no template, no message, or the template refuses the messages.
        """
        if self._template is None:
            raise Refusal(
                "As of transformers v4.44, default chat template is no longer allowed, so you must provide a "
                "chat template if the tokenizer does not define one."
            )
        messages = [_message(message) for message in body["messages"]]
        if not messages:
            raise Refusal(_EMPTY)
        values: dict[str, Any] = {**self.special}
        values.update(body.get("chat_template_kwargs") or {})
        values["messages"] = messages
        values["tools"] = [_tool(tool) for tool in body["tools"]] if body.get("tools") else None
        values["documents"] = body.get("documents")
        values["add_generation_prompt"] = body.get("add_generation_prompt", True)
        try:
            text = self._template.render(**values)
        except Exception as error:  # whatever a template makes of a client's values: the engine refuses them all alike
            raise Refusal(str(error)) from error
        return _continued(text, messages) if body.get("continue_final_message") else text


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    value = json.loads(file.read_text("utf-8"))
    return value if isinstance(value, dict) else {}


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _template(folder: Path, configuration: dict[str, Any]) -> jinja2.Template | None:
    file = folder / "chat_template.jinja"
    source = file.read_text("utf-8") if file.is_file() else configuration.get("chat_template")
    if isinstance(source, list):
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UsageError([f"--tokenizer: the chat template in {folder} is not valid Jinja ({error})"]) from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Bring one message into the form that templates expect, as the engine does before it renders."""
    result = dict(message)
    if result.get("role") == "developer":
        result["role"] = "system"
    content = result.get("content")
    if isinstance(content, list):
        result["content"] = "\n".join(_part(part) for part in content)
    elif content is None:
        result["content"] = "" if "tool_calls" not in result else None
    if "reasoning_content" in result and "reasoning" not in result:
        result["reasoning"] = result["reasoning_content"]
    calls = result.get("tool_calls")
    if isinstance(calls, list):
        result["tool_calls"] = [_call(call) for call in calls]
    return result


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type", "text") in ("text", "input_text", "output_text"):
        text = part.get("text", "")
        if not isinstance(text, str):
            raise bad_schema("string_type", "body.messages.content.text", "Input should be a valid string", text)
        return text
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise Refusal(f"At most 0 {kind}(s) may be provided in one prompt: this engine reads text alone.")


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except ValueError as error:
            raise Refusal(f"The arguments of a tool call are not JSON: {error}") from error
    return {**call, "function": function}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with the fields that the engine keeps, in its order."""
    function = tool.get("function") or {}
    kept: dict[str, Any] = {name: function.get(name) for name in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        kept["strict"] = function["strict"]
    return {"type": tool.get("type", "function"), "function": kept}


def _continued(text: str, messages: list[dict[str, Any]]) -> str:
    """Cut the prompt behind the final message, so that the answer goes on with it."""
    final = str(messages[-1].get("content") or "").strip()
    at = text.rfind(final)
    if at < 0:
        raise Refusal(
            "continue_final_message is set but the final message does not appear in the chat after "
            "applying the chat template."
        )
    return text[: at + len(final)]
