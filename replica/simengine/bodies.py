"""An OpenAI body as the engine reads it: what to generate, or vLLM's refusal.

The order of the checks is the engine's: the types of the fields, then the model, then the values, then the prompt.
Unknown fields are accepted. What is read here and changes nothing (temperature, top_p, ...) is only checked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from replica.simengine.core.hashing import Adapter
from replica.simengine.fields import boolean, integer, number
from replica.simengine.prompts import completion_prompts, encoded, fitting
from replica.simengine.refusals import Refusal, bad_schema, bad_value, unknown_model
from replica.simengine.settings import Settings
from replica.simengine.text import Text

_MEDIA_TYPE = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
_DEFAULT_COMPLETION_TOKENS = 16
_MOST_CHOICES = 16_384


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants generated.

    Attributes:
        prompts: Token ids of each prompt.
        texts: Each prompt's text, where it was given as text; for `echo`.
        max_tokens: Output tokens of each prompt's answers.
        logprobs: How many alternatives beside each token's own; None for no log-probabilities.
        stops: Strings that end an answer.
        reads_cache: False where the prompt's log-probabilities are asked.
    """

    chat: bool
    adapter: Adapter | None
    prompts: list[list[int]]
    texts: list[str | None]
    max_tokens: list[int]
    n: int
    stream: bool
    include_usage: bool
    usage_in_each: bool
    stops: tuple[str, ...]
    keep_stop: bool
    stop_token_ids: frozenset[int]
    min_tokens: int
    echo: bool
    logprobs: int | None
    prompt_logprobs: bool
    return_token_ids: bool
    salt: str | None
    seed: str
    reads_cache: bool
    role: str


def read_json(data: bytes, content_type: str | None) -> dict[str, Any]:
    """Return the body as an object.

    Raises:
        Refusal: It is not JSON, not an object, or not declared as JSON.
    """
    if (content_type or "").split(";", 1)[0].strip().lower() != "application/json":
        raise Refusal(_MEDIA_TYPE, kind="Bad Request")
    if not data:
        raise bad_schema("missing", "body", "Field required", None)
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = _read_leniently(data)
    if not isinstance(body, dict):
        what = "Input should be a valid dictionary or object to extract fields from"
        raise bad_schema("model_attributes_type", "body", what, body)
    return body


def _read_leniently(data: bytes) -> Any:
    """Read what the standard library takes and orjson does not: UTF-16, a BOM, NaN."""
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False).encode()
        return body
    except UnicodeEncodeError as error:
        what = "Input should be a valid string, unable to parse raw data as a unicode string"
        raise bad_schema("string_unicode", "body", what, {}) from error
    except json.JSONDecodeError as error:
        where = f"body.{error.pos}"
        raise bad_schema("json_invalid", where, "JSON decode error", {}, ctx={"error": error.msg}) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, an integer of thousands of digits, nested too deeply
        raise Refusal("There was an error parsing the body", kind="Bad Request") from error


def check_model(body: dict[str, Any], settings: Settings) -> Adapter | None:
    """Return the adapter that is asked for, None for the base model (also when no model is named)."""
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise bad_schema("string_type", "body.model", "Input should be a valid string", name)
    if name and name not in settings.names:
        raise unknown_model(name, list(settings.served))
    return settings.adapter(name)


def check_messages(body: dict[str, Any]) -> None:
    """Refuse messages and tools that are not what a template could be given."""
    if "messages" not in body:
        raise bad_schema("missing", "body.messages", "Field required", body)
    for name in ("messages", "tools"):
        value = body.get(name)
        if value is None and name == "tools":
            continue
        if not isinstance(value, list):
            raise bad_schema("list_type", f"body.{name}", "Input should be a valid list", value)
        for index, each in enumerate(value):
            if not isinstance(each, dict):
                raise bad_schema("dict_type", f"body.{name}.{index}", "Input should be a valid dictionary", each)
    values = body.get("chat_template_kwargs")
    if values is not None and not isinstance(values, dict):
        raise bad_schema("dict_type", "body.chat_template_kwargs", "Input should be a valid dictionary", values)
    for index, message in enumerate(body["messages"]):
        where = f"body.messages.{index}"
        if not isinstance(message.get("role"), str):
            raise bad_schema("missing", f"{where}.role", "Field required", message)
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise bad_schema("string_type", f"{where}.content", "Input should be a valid string", content)


def read_ask(body: dict[str, Any], *, chat: bool, settings: Settings, text: Text) -> Ask:
    """Return what a completion or chat body asks for.

    Raises:
        Refusal: As the engine would refuse it.
    """
    if chat:
        check_messages(body)
    asked = integer(body, "n")
    n = 1 if asked is None else asked
    stream = boolean(body, "stream")
    limit = integer(body, "max_completion_tokens") if chat else None
    if limit is None:
        limit = integer(body, "max_tokens")
    if limit is None and not chat:
        limit = _DEFAULT_COMPLETION_TOKENS
    temperature = number(body, "temperature", 1.0)
    echo = boolean(body, "echo")
    logprobs = _logprobs(body, chat=chat)
    prompt_logprobs = body.get("prompt_logprobs") is not None or (echo and logprobs is not None and not chat)
    options = _stream_options(body, stream=stream)
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise bad_value("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    truncate = integer(body, "truncate_prompt_tokens")
    model_len = settings.limits.max_model_len
    if not chat:
        texts, prompts = completion_prompts(body, text, model_len, truncate)
    adapter = check_model(body, settings)
    if chat:
        rendered = text.render(body)
        special = boolean(body, "add_special_tokens")
        texts, prompts = [rendered], [encoded(rendered, text, model_len, truncate, special=special)]
    prompts = [
        fitting(ids, model_len, truncate, text.vocabulary, was_text=given is not None)
        for given, ids in zip(texts, prompts, strict=True)
    ]
    if temperature < 0:
        raise bad_value(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if n < 1:
        raise Refusal(f"n must be at least 1, got {n}.")
    if n > _MOST_CHOICES:
        raise Refusal(f"n must be at most {_MOST_CHOICES}, got {n}.")
    max_tokens = [model_len - len(ids) if limit is None else min(limit, model_len - len(ids)) for ids in prompts]
    for each in max_tokens:
        if each < 1:
            raise bad_value(f"max_tokens must be at least 1, got {each}.", "max_tokens", each)
    if n > 1 and temperature < 1e-5:
        raise Refusal(f"n must be 1 when using greedy sampling, got {n}.")
    return Ask(
        chat=chat,
        adapter=adapter,
        prompts=prompts,
        texts=texts,
        max_tokens=max_tokens,
        n=n,
        stream=stream,
        include_usage=boolean(options, "include_usage"),
        usage_in_each=boolean(options, "include_usage") and boolean(options, "continuous_usage_stats"),
        stops=_stops(body),
        keep_stop=boolean(body, "include_stop_str_in_output"),
        stop_token_ids=_stop_token_ids(body, text),
        min_tokens=integer(body, "min_tokens") or 0,
        echo=echo,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        return_token_ids=boolean(body, "return_token_ids"),
        salt=salt,
        seed=f"{settings.seed or ''}/{body.get('seed') or ''}",
        reads_cache=not prompt_logprobs,
        role="assistant" if not chat or body.get("add_generation_prompt", True) else body["messages"][-1]["role"],
    )


def _logprobs(body: dict[str, Any], *, chat: bool) -> int | None:
    if not chat:
        return integer(body, "logprobs")
    return integer(body, "top_logprobs") or 0 if boolean(body, "logprobs") else None


def _stream_options(body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    options = body.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        what = "Input should be a valid dictionary or instance of StreamOptions"
        raise bad_schema("model_type", "body.stream_options", what, options)
    if not stream:
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    return options


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise bad_schema("string_type", "body.stop", "Input should be a valid string", stop)
    if "" in stops:
        raise bad_value("stop cannot contain an empty string.", "stop", stops)
    return tuple(stops)


def _stop_token_ids(body: dict[str, Any], text: Text) -> frozenset[int]:
    given = body.get("stop_token_ids") or []
    if not isinstance(given, list) or not all(isinstance(each, int) for each in given):
        raise bad_schema("list_type", "body.stop_token_ids", "Input should be a valid list", given)
    ends = set(given)
    if text.eos_token_id is not None and not body.get("ignore_eos"):
        ends.add(text.eos_token_id)
    return frozenset(ends)
