"""Loading a model's text: which template, which tokens, and errors that say what to do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from router.request.encoders.encoder import TokenizerError
from router.request.encoders.table import load
from router.request.model_text import ModelText
from router.request.reader import PromptReader
from router.request.reasons import NotUnderstoodError, Reason

MakeFolder = Callable[..., Path]
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
TOOLS = {**HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}


def test_template_file_of_the_folder(make_folder: MakeFolder) -> None:
    """chat_template.jinja wins over tokenizer_config.json."""
    folder = make_folder(config={"chat_template": "config"}, files={"chat_template.jinja": "file"})
    assert load(folder).render_chat(HELLO) == "file"


def test_template_in_the_configuration(make_folder: MakeFolder) -> None:
    """A template in tokenizer_config.json is used, and sees the special tokens."""
    folder = make_folder(config={"chat_template": "{{ bos_token }}+{{ eos_token }}", "bos_token": {"content": "<B>"}})
    assert load(folder).render_chat(HELLO) == "<B>+<|im_end|>"


def test_named_templates(make_folder: MakeFolder) -> None:
    """Of named templates `tool_use` is for requests with tools, `default` for the others."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    text = load(make_folder(config={"chat_template": named}))
    assert (text.render_chat(HELLO), text.render_chat(TOOLS)) == ("plain", "tools")


def test_additional_templates(make_folder: MakeFolder) -> None:
    """Templates in files of their own are named by the file."""
    files = {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools"}
    text = load(make_folder(files=files))
    assert (text.render_chat(HELLO), text.render_chat(TOOLS)) == ("plain", "tools")


def test_processor_template(make_folder: MakeFolder) -> None:
    """A processor's template goes before the tokenizer's, unless there are tools."""
    files = {"chat_template.json": json.dumps({"chat_template": "processor"})}
    text = load(make_folder(config={"chat_template": "tokenizer"}, files=files))
    assert (text.render_chat(HELLO), text.render_chat(TOOLS)) == ("processor", "tokenizer")


def test_override(make_folder: MakeFolder, tmp_path: Path) -> None:
    """The engine's --chat-template goes before all others."""
    (tmp_path / "other.jinja").write_text("other")
    text = load(make_folder(files={"chat_template.jinja": "file"}), tmp_path / "other.jinja")
    assert (text.render_chat(HELLO), text.render_chat(TOOLS)) == ("other", "other")


def test_no_template(make_folder: MakeFolder) -> None:
    """A model without template serves completions; its chats have the reason no_template."""
    text = load(make_folder())
    reader = PromptReader(lambda _: text)
    assert reader.read("/v1/chat/completions", json.dumps(HELLO).encode()).reason is Reason.NO_TEMPLATE
    assert reader.read("/v1/completions", b'{"prompt": "hello"}').reason is None


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "x"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": [1]}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": "x"},
        {"documents": "x"},
        {"documents": ["x"]},
        {"chat_template_kwargs": {"tools": ["x"]}},
    ],
)
def test_requests_that_bring_their_own_rendering(fields: dict[str, Any], tiny: ModelText) -> None:
    """A template in the request is not run, and odd variables are not followed."""
    with pytest.raises(NotUnderstoodError) as error:
        tiny.render_chat({**HELLO, **fields})
    assert error.value.reason in (Reason.UNSUPPORTED, Reason.BAD_REQUEST)


def test_saved_truncation_and_padding_do_not_count(make_folder: MakeFolder, tiny: ModelText) -> None:
    """A tokenizer.json with truncation and padding encodes whole texts, as the engine does."""
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 600},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    text = load(make_folder(tokenizer={"truncation": truncation, "padding": padding}))
    sentence = "the import system loads modules " * 20
    assert text.encode(sentence, add_special_tokens=True) == tiny.encode(sentence, add_special_tokens=True)


def test_tokens_that_only_the_configuration_names(make_folder: MakeFolder, tiny: ModelText) -> None:
    """A special token that tokenizer.json lacks gets the next id, whole."""
    text = load(make_folder(config={"extra_special_tokens": ["<|extra|>"], "bos_token": "<|first|>"}))
    size = 4096
    assert text.encode("<|extra|>", add_special_tokens=False) == [size + 1]
    assert text.encode("<|first|>", add_special_tokens=False) == [size]
    assert len(tiny.encode("<|extra|>", add_special_tokens=False)) > 1


def test_split_special_tokens(make_folder: MakeFolder) -> None:
    """With `split_special_tokens` a special token in the text is text."""
    text = load(make_folder(config={"split_special_tokens": True}))
    assert len(text.encode("<|im_start|>", add_special_tokens=False)) > 1


def test_too_long(make_folder: MakeFolder) -> None:
    """Text over the bound is not encoded."""
    text = load(make_folder(), max_chars=10)
    assert text.encode("x" * 10, add_special_tokens=False)
    with pytest.raises(NotUnderstoodError) as error:
        text.encode("x" * 11, add_special_tokens=False)
    assert error.value.reason is Reason.TOO_LONG


def test_lone_surrogates_are_a_tokenizer_error(tiny: ModelText) -> None:
    """Text that is no Unicode is no crash."""
    with pytest.raises(NotUnderstoodError) as error:
        tiny.encode("\ud800", add_special_tokens=False)
    assert error.value.reason is Reason.TOKENIZER_ERROR


def test_folder_missing(tmp_path: Path) -> None:
    """A folder that is not there: one line that says what to give."""
    with pytest.raises(TokenizerError, match=r"does not exist: give the folder that holds tokenizer\.json$"):
        load(tmp_path / "nowhere")


def test_tokenizer_missing(tmp_path: Path) -> None:
    """A folder without tokenizer.json: one line that says what to copy."""
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json: copy the model's tokenizer files"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "x"),
        ("tokenizer_config.json", "x"),
        ("tokenizer_config.json", "[]"),
        ("chat_template.json", "x"),
        ("chat_template.jinja", "{% for %}"),
    ],
)
def test_broken_files(name: str, content: str, make_folder: MakeFolder) -> None:
    """A broken file is named, in one line."""
    folder = make_folder(files={name: content})
    with pytest.raises(TokenizerError) as error:
        load(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_override_missing(make_folder: MakeFolder, tmp_path: Path) -> None:
    """A template file that is not there is named."""
    with pytest.raises(TokenizerError, match=r"no\.jinja"):
        load(make_folder(), tmp_path / "no.jinja")


@pytest.fixture
def bos_text(tmp_path: Path) -> ModelText:
    """A tokenizer that adds BOS, and a template that writes BOS itself: characters are tokens, <s> is 0."""
    vocabulary = {"<s>": 0} | {
        letter: place for place, letter in enumerate(sorted(set(pre_tokenizers.ByteLevel.alphabet())), 1)
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    return load(tmp_path)


@pytest.mark.parametrize(
    ("path", "flag", "bos_count"),
    [
        ("/v1/chat/completions", None, 1),
        ("/v1/chat/completions", False, 1),
        ("/v1/chat/completions", True, 2),
        ("/v1/completions", None, 1),
        ("/v1/completions", True, 1),
        ("/v1/completions", False, 0),
    ],
)
def test_bos_once_or_as_the_request_says(path: str, flag: bool | None, bos_count: int, bos_text: ModelText) -> None:
    """Chats get BOS from the template, completions from the tokenizer; the request's flag is followed (HASH-06)."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "[user]hi"}
    if flag is not None:
        body["add_special_tokens"] = flag
    ids = PromptReader(lambda _: bos_text).read(path, json.dumps(body).encode()).token_ids
    assert ids is not None
    assert ids[:bos_count] == [0] * bos_count
    assert ids.count(0) == bos_count
    assert len(ids) == bos_count + len("[user]hi")


def test_all_turns_are_rendered(bos_text: ModelText) -> None:
    """A chat's later turns extend the prompt of its first (HASH-06)."""
    reader = PromptReader(lambda _: bos_text)
    turns = [{"role": role, "content": role * 3} for role in ("system", "user", "assistant", "user")]
    prompts = [
        reader.read("/v1/chat/completions", json.dumps({"messages": turns[:count]}).encode()).token_ids
        for count in (1, 2, 4)
    ]
    for shorter, longer in itertools.pairwise(prompts):
        assert shorter is not None
        assert longer is not None
        assert longer[: len(shorter)] == shorter
        assert len(longer) > len(shorter)
