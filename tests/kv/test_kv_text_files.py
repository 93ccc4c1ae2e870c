"""Which files may come from an agent: those that the router's tokenizers read, and nothing with another path."""

from __future__ import annotations

import pytest

from router.kv.text_files import ENGINE_TEMPLATE, has_tokenizer, is_needed, set_digest
from router.request.encoders import huggingface
from router.request.encoders.tiktoken_ranks import FAMILIES


@pytest.mark.parametrize(
    "name",
    [huggingface.FILE, *FAMILIES, "tekken.json", "tekken_240911.json", "tokenizer.model.v3", "x.model.v11m1"],
)
def test_every_tokenizer_that_routers_load_is_known(name: str) -> None:
    """Each kind of the encoders' table."""
    assert is_needed(name)
    assert has_tokenizer(["config.json", name])


@pytest.mark.parametrize(
    "name",
    [
        "../tokenizer.json",
        "/tokenizer.json",
        "x/tokenizer.json",
        "additional_chat_templates/../../x.jinja",
        "additional_chat_templates/.jinja",
        "additional_chat_templates/a/b.jinja",
        "tokenizer.json\n",
        "a/b.tiktoken",
        "model.safetensors",
        "tokenizer.py",
        "",
        ENGINE_TEMPLATE,
    ],
)
def test_nothing_else_is(name: str) -> None:
    """No other folder, no weights, no code; the engine's own template is none of a folder's files."""
    assert not is_needed(name)


def test_a_folder_of_templates_has_no_tokenizer() -> None:
    """What goes beside a tokenizer is of no use alone."""
    assert not has_tokenizer(["tokenizer_config.json", "chat_template.jinja", "config.json"])


def test_a_set_is_named_by_names_and_contents() -> None:
    """The order does not matter; swapped contents do."""
    assert set_digest({"a": "1", "b": "2"}) == set_digest({"b": "2", "a": "1"}) != set_digest({"a": "2", "b": "1"})
