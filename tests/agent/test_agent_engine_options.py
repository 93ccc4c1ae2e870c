"""Options out of an engine's command line: as vLLM 0.32's own parser takes them (`FlexibleArgumentParser`)."""

from __future__ import annotations

import pytest

from replica.agent.engine_options import json_option, text_option


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("vllm serve m", None),
        ("vllm serve m --chat-template a", "a"),
        ("vllm serve m --chat-template=a", "a"),
        ("vllm serve m --chat_template a", "a"),
        ("vllm serve m --chat_template=a_b", "a_b"),
        ("vllm serve m --chat-template a --chat-template=b", "b"),
        ("vllm serve m --chat-template", None),
        ("vllm serve m --chat-template-content-format string", None),
        ("vllm serve m --chat-template=", ""),
    ],
)
def test_an_option_in_every_spelling(command: str, value: str | None) -> None:
    """The last one holds."""
    assert text_option(command.split(), "--chat-template") == value


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("m", None),
        ('--json {"a":1}', {"a": 1}),
        ('--json={"a":"x=y"}', {"a": "x=y"}),
        ("--json.a 1", {"a": 1}),
        ("--json.a=true --json.b.c x", {"a": True, "b": {"c": "x"}}),
        ('--json {"z":1} --json.a 1', {"a": 1}),
        ("--json.a+ x,y --json.a+ z", {"a": ["x", "y", "z"]}),
        ("--json.a_b 1.5", {"a_b": 1.5}),
    ],
)
def test_json_whole_or_key_by_key(command: str, value: object) -> None:
    """What is given key by key holds alone, as the engine's parser puts it last."""
    assert json_option(command.split(), "--json") == value


@pytest.mark.parametrize("command", ["--json {", "--json []", "--json.a 80g", "--json.a 1.5K"])
def test_what_can_not_be_told(command: str) -> None:
    """No JSON object, and numbers by rules of vLLM's own."""
    with pytest.raises(ValueError, match=r"."):
        json_option(command.split(), "--json")
