"""Prompts with images: what stands before the first one is known, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders.table import Options, load_text
from router.request.model_text import ModelText
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.request.reasons import Reason

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer"
STRINGS = (GOLDEN / "chat_template.jinja").read_text(encoding="utf-8")
# As Qwen2.5-VL's: the content is a string or parts, and an image is three special tokens of which one is repeated.
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<|endoftext|>{% else %}{{ c.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IMAGES_FIRST = "{% if messages[-1].content | selectattr('type', 'equalto', 'image') | list %}I{% endif %}" + PARTS
SYSTEM = {"role": "system", "content": "You look at pictures. " * 20}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}, "uuid": "picture-1"}
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)


def _text(template: str, tmp_path: Path) -> ModelText:
    file = tmp_path / "template.jinja"
    file.write_text(template, encoding="utf-8")
    text = load_text(GOLDEN, Options(template_file=file))
    assert isinstance(text, ModelText)
    return text


def _read(text: ModelText, *messages: Any, **fields: Any) -> Prompt:
    body = {"messages": messages, **fields}
    return PromptReader(lambda _: text).read("/v1/chat/completions", json.dumps(body).encode())


def _user(*parts: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts],
    }


def test_parts_up_to_the_first_image(tmp_path: Path) -> None:
    """Where the image begins with a special token, all text before it is known to the last token."""
    text = _text(PARTS, tmp_path)
    prompt = _read(text, SYSTEM, _user("What is ", IMAGE, " here?"))
    before = f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n<|im_start|>user\nWhat is "
    assert prompt.token_ids == text.encode(before, add_special_tokens=False)
    assert prompt.reason is Reason.MEDIA
    assert prompt.tokens > len(prompt.token_ids)


def test_strings_up_to_the_message_with_the_image(tmp_path: Path) -> None:
    """Where the engine makes a string of it, nothing of the message is known, and no token is divided."""
    text = _text(STRINGS, tmp_path)
    prompt = _read(text, SYSTEM, _user("What is ", IMAGE, " here?"))
    before = f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n"
    assert prompt.token_ids == text.encode(before, add_special_tokens=False)
    assert prompt.reason is Reason.MEDIA


def test_the_chain_is_the_beginning_of_the_texts_own(tmp_path: Path) -> None:
    """The text before an image finds the blocks of the same text without one."""
    text = _text(PARTS, tmp_path)
    with_image = _read(text, SYSTEM, _user("hello", IMAGE)).chain(SCHEME, None)
    without = _read(text, SYSTEM, _user("hello")).chain(SCHEME, None)
    assert len(with_image) >= 4
    assert with_image == without[: len(with_image)]


def test_nothing_after_the_first_image(tmp_path: Path) -> None:
    """Whatever follows the first image changes nothing."""
    text = _text(PARTS, tmp_path)
    one = _read(text, SYSTEM, _user("a", IMAGE, "b"))
    other = _read(text, SYSTEM, _user("a", {**IMAGE, "uuid": "other"}, IMAGE), {"role": "assistant", "content": "c"})
    assert one.token_ids == other.token_ids
    assert one.token_ids


def test_images_that_the_template_tells_of_before(tmp_path: Path) -> None:
    """A template that prints something for an image elsewhere: the text ends there."""
    text = _text(IMAGES_FIRST, tmp_path)
    prompt = _read(text, SYSTEM, _user("What is ", IMAGE))
    assert (prompt.token_ids, prompt.reason) == (None, Reason.MEDIA)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "x"}},
        {"image_url": {"url": "x"}},
    ],
)
def test_other_media(part: dict[str, Any], tmp_path: Path) -> None:
    """Sound, video and parts without a type stop the chain, too."""
    prompt = _read(_text(PARTS, tmp_path), SYSTEM, _user("hello", part))
    assert prompt.reason is Reason.MEDIA
    assert prompt.token_ids


def test_an_image_in_the_first_message(tmp_path: Path) -> None:
    """When nothing stands before it, there are no ids, and the request is placed by load."""
    prompt = _read(_text(STRINGS, tmp_path), _user(IMAGE))
    assert (prompt.token_ids, prompt.reason) == (None, Reason.MEDIA)


def test_images_of_the_messages_api(tmp_path: Path) -> None:
    """An image in Anthropic's form stops the chain at the same place."""
    text = _text(PARTS, tmp_path)
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    body = {
        "system": SYSTEM["content"],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "image", "source": source}]}
        ],
    }
    prompt = PromptReader(lambda _: text).read("/v1/messages", json.dumps(body).encode())
    assert prompt.token_ids == _read(text, SYSTEM, _user("What is ", IMAGE)).token_ids
    assert prompt.reason is Reason.MEDIA
