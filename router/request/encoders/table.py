"""Every kind of tokenizer, in one table: what tells it, and what loads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from router.request.chat import MAX_CHARS, Chat, ChatRenderer
from router.request.client_templates import ClientTemplates
from router.request.encoders import huggingface, mistral, tiktoken_ranks
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.files import read_json
from router.request.isolated_chat import IsolatedChat
from router.request.model_text import ModelText
from router.request.templates import load_templates, template_sources
from router.request.text import Text
from router.request.token_cache import TokenCache

# Models whose chats the engine encodes by code of its own, whatever their template says (vLLM 0.32).
_OWN_ENCODING_TYPES = frozenset({"gpt_oss"})
_OWN_ENCODING_ARCHITECTURES = frozenset(
    {
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "DeepseekV41ForCausalLM",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
    }
)


@dataclass(frozen=True, slots=True)
class Options:
    """How a model's text is used.

    Attributes:
        template_file: The template of an engine that was started with `--chat-template`.
        defaults: The engine's `--default-chat-template-kwargs`.
        cache: Where tokenised text is kept; None: nowhere.
        client_templates: Renders the templates that requests bring; None: they are not run.
        isolated: Renders the model's own templates too, where they are nobody's whom the operator named; None: they
            are rendered here.
        clock: What a template's `strftime_now` asks.
        max_chars: Longest text that is rendered or encoded.
    """

    template_file: Path | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    cache: TokenCache | None = None
    client_templates: ClientTemplates | None = None
    isolated: ClientTemplates | None = None
    clock: Callable[[], datetime] = datetime.now
    max_chars: int = MAX_CHARS


def _huggingface(path: Path, options: Options) -> Text | None:
    if path.name == huggingface.FILE:
        path = path.parent
    if not (path / huggingface.FILE).is_file():
        return None
    encoder, special_tokens = huggingface.load(path)
    return _with_templates(path, encoder, special_tokens, options)


def _tiktoken(path: Path, options: Options) -> Text | None:
    file = tiktoken_ranks.find(path)
    if file is None:
        return None
    folder = file.parent
    special_tokens = huggingface.special_tokens_of(read_json(folder / "tokenizer_config.json"))
    return _with_templates(folder, tiktoken_ranks.load(file), special_tokens, options)


def _mistral(path: Path, options: Options) -> Text | None:
    file = mistral.find(path)
    return None if file is None else mistral.MistralText(file, options.cache, options.max_chars)


TABLE: tuple[Callable[[Path, Options], Text | None], ...] = (_mistral, _huggingface, _tiktoken)
"""Asked in this order. A folder with Mistral's own files is read as the engine reads it: by them."""


def load(
    path: Path,
    template_file: Path | None = None,
    clock: Callable[[], datetime] = datetime.now,
    max_chars: int = MAX_CHARS,
) -> Text:
    """Load a model's text from a folder, with no cache; see `load_text`.

    Raises:
        TokenizerError: When something is missing or broken.
    """
    return load_text(path, Options(template_file=template_file, clock=clock, max_chars=max_chars))


def load_text(path: Path, options: Options) -> Text:
    """Load a model's text.

    Args:
        path: The folder with the model's tokenizer files, or one file of ranks or of Mistral's.
        options: How it is used.

    Raises:
        TokenizerError: When something is missing or broken.
    """
    if not path.exists():
        raise TokenizerError(f"tokenizer folder {path} does not exist: give the folder that holds tokenizer.json")
    for kind in TABLE:
        text = kind(path, options)
        if text is not None:
            return text
    raise TokenizerError(
        f"{path} has no tokenizer.json: copy the model's tokenizer files there (its weights are not needed)"
    )


def _with_templates(
    folder: Path,
    encoder: huggingface.HuggingFaceEncoder | tiktoken_ranks.TiktokenEncoder,
    special_tokens: Mapping[str, str],
    options: Options,
) -> ModelText:
    chat: Chat
    if options.isolated is None:
        templates = load_templates(folder, options.template_file, options.clock)
        chat = ChatRenderer(templates, special_tokens, options.defaults, options.max_chars)
    else:
        sources = template_sources(folder, options.template_file)
        chat = IsolatedChat(sources, special_tokens, options.isolated, options.defaults, options.max_chars)
        chat.check()
    config = read_json(folder / "config.json")
    architectures = config.get("architectures")
    own = config.get("model_type") in _OWN_ENCODING_TYPES or not _OWN_ENCODING_ARCHITECTURES.isdisjoint(
        architectures if isinstance(architectures, list) else ()
    )
    return ModelText(encoder, chat, options.cache, options.client_templates, followed=not own)
