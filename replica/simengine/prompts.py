"""The prompts of a completion: a text, token ids, or a list of either; and whether they fit the model."""

from __future__ import annotations

from typing import Any

from replica.simengine.refusals import Refusal, bad_schemas, bad_value, line
from replica.simengine.text import Text

_LIST, _STRING = "Input should be a valid list", "Input should be a valid string"


def encoded(prompt: str, text: Text, model_len: int, truncate: int | None, *, special: bool) -> list[int]:
    """Return the token ids of a text.

    Raises:
        Refusal: It has more characters than the longest tokens would make: the engine does not tokenise such a one.
    """
    most = model_len * text.longest_token
    if truncate is None and len(prompt) > most:
        raise bad_value(
            f"This model's maximum context length is {model_len} tokens. However, your prompt contains {len(prompt)} "
            f"characters (more than {most} characters, which is the upper bound for {model_len} input tokens). "
            "Please reduce the length of the input prompt.",
            "input_text",
            len(prompt),
        )
    return text.encode(prompt, add_special_tokens=special)


def completion_prompts(
    body: dict[str, Any], text: Text, model_len: int, truncate: int | None
) -> tuple[list[str | None], list[list[int]]]:
    """Return each prompt's text (None where it was given as ids) and its token ids.

    Raises:
        Refusal: There is no prompt, it is of another type, or a text is far too long.
    """
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    special = bool(body.get("add_special_tokens", True))
    if isinstance(prompt, str):
        return [prompt], [encoded(prompt, text, model_len, truncate, special=special)]
    if not isinstance(prompt, list):
        problems = [("list_type", _LIST), ("list_type", _LIST), ("string_type", _STRING), ("list_type", _LIST)]
        raise bad_schemas([line(kind, "body.prompt", what, prompt) for kind, what in problems], "body.prompt")
    if not prompt:
        raise Refusal("You must pass at least one prompt")
    if _are_ids(prompt):
        return [None], [prompt]
    if all(isinstance(each, str) for each in prompt):
        return list(prompt), [encoded(each, text, model_len, truncate, special=special) for each in prompt]
    if all(isinstance(each, list) and _are_ids(each) for each in prompt):
        return [None] * len(prompt), list(prompt)
    raise _unfit(prompt)


def _are_ids(values: list[Any]) -> bool:
    return all(type(each) is int and each >= 0 for each in values)


def _unfit(prompt: list[Any]) -> Refusal:
    """Name the first element that makes a list neither ids nor texts nor lists of ids."""
    at, value = next(
        (index, each)
        for index, each in enumerate(prompt)
        if not (isinstance(each, str) or (isinstance(each, list) and _are_ids(each)) or _are_ids([each]))
        or type(each) is not type(prompt[0])
    )
    where = f"body.prompt.{at}"
    negative = type(value) is int and value < 0
    first = (
        line("greater_than_equal", where, "Input should be greater than or equal to 0", value, ctx={"ge": 0})
        if negative
        else line("int_type", where, "Input should be a valid integer", value)
    )
    return bad_schemas(
        [
            first,
            line("list_type", where, _LIST, value),
            line("string_type", "body.prompt", _STRING, prompt),
            line("string_type", where, _STRING, value),
        ],
        where,
    )


def fitting(ids: list[int], model_len: int, truncate: int | None, vocabulary: int, *, was_text: bool) -> list[int]:
    """Return the prompt, cut to its last `truncate` tokens if that is asked (-1: the model's length).

    Raises:
        Refusal: It is empty, longer than the model, or names a token that there is not.
    """
    if truncate is not None:
        keep = model_len if truncate == -1 else truncate
        if not 0 < keep <= model_len:
            raise bad_value(
                f"truncate_prompt_tokens value ({truncate}) is greater than max_model_len ({model_len}). "
                "Please request a smaller truncation size.",
                "truncate_prompt_tokens",
                truncate,
            )
        ids = ids[-keep:]
    if len(ids) > model_len:
        count = min(len(ids), model_len + 1) if was_text else len(ids)
        counted = f"at least {count}" if count == model_len + 1 else str(count)
        raise bad_value(
            f"This model's maximum context length is {model_len} tokens. However, your prompt contains {counted} "
            "input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            count,
        )
    if not ids:
        raise Refusal("The decoder prompt cannot be empty")
    highest = max(ids)
    if highest >= vocabulary:
        raise Refusal(f"Token id {highest} is out of vocabulary")
    return ids
