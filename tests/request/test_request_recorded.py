"""Reading requests against what the running engine and its library made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from router.request.encoders.table import load
from router.request.model_text import ModelText
from router.request.reader import PromptReader

GOLDEN = Path(__file__).parents[1] / "golden"
VECTORS = json.loads((GOLDEN / "vectors/vllm-0.32-hashes.json").read_text())["engine"]
RENDERING = json.loads((GOLDEN / "rendering.json").read_text())


def _first(token_ids: list[Any]) -> list[int]:
    return token_ids[0] if isinstance(token_ids[0], list) else token_ids


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["status"] == 200], ids=lambda v: v["name"])
def test_token_ids_of_the_running_engine(vector: dict[str, Any], tiny: ModelText) -> None:
    """Every recorded request gives the ids that the engine computed."""
    prompt = PromptReader(lambda _: tiny).read(vector["endpoint"], json.dumps(vector["body"]).encode())
    assert prompt.token_ids == _first(vector["prompt_token_ids"])
    assert prompt.tokens == len(_first(vector["prompt_token_ids"]))
    assert prompt.reason is None


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["status"] == 200], ids=lambda v: v["name"])
def test_whether_the_running_engine_read_its_cache(vector: dict[str, Any], tiny: ModelText) -> None:
    """Requests that hit nothing when sent again, though they were long enough, are those with `reads_cache` False."""
    prompt = PromptReader(lambda _: tiny).read(vector["endpoint"], json.dumps(vector["body"]).encode())
    if prompt.tokens > vector["block_size"]:
        assert prompt.reads_cache == (vector["cached_repeat"] > 0)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], ModelText]:
    """(tokenizer, template) to its ModelText, for both tokenizers and all templates of the recording."""
    made = {}
    for kind in ("plain", "bos"):
        folder = tmp_path_factory.mktemp(kind)
        shutil.copytree(GOLDEN / "tokenizer", folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
        if kind == "bos":
            tokenizer = json.loads((folder / "tokenizer.json").read_text())
            tokenizer["post_processor"] = RENDERING["bos_post_processor"]
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        for name, source in RENDERING["templates"].items():
            file = folder / f"{name}.template"
            file.write_text(source, encoding="utf-8")
            made[kind, name] = load(folder, file)
    return made


CHATS = [(kind, record) for kind in ("plain", "bos") for record in RENDERING[kind]["chats"]]


@pytest.mark.parametrize("name", RENDERING["templates"])
def test_chats_of_the_engines_library(name: str, texts: dict[tuple[str, str], ModelText]) -> None:
    """Under every template, each recorded body gives the library's text and ids."""
    seen = 0
    for kind, record in CHATS:
        if record["template"] != name or "refused" in record:
            continue
        text = texts[kind, name]
        assert text.render_chat(record["body"]) == record["text"], record["body"]
        prompt = PromptReader(lambda _, text=text: text).read(
            "/v1/chat/completions", json.dumps(record["body"]).encode()
        )
        assert prompt.token_ids == record["token_ids"], record["body"]
        seen += 1
    assert seen > 30


def test_chats_that_the_engine_refuses(texts: dict[tuple[str, str], ModelText]) -> None:
    """A body that the engine answers with a 400 has a reason here."""
    refused = [(kind, record) for kind, record in CHATS if "refused" in record]
    for kind, record in refused:
        text = texts[kind, record["template"]]
        prompt = PromptReader(lambda _, text=text: text).read(
            "/v1/chat/completions", json.dumps(record["body"]).encode()
        )
        assert prompt.token_ids is None, record["body"]
        assert prompt.reason is not None
    assert len(refused) > 20


@pytest.mark.parametrize("kind", ["plain", "bos"])
def test_completions_of_the_engines_library(kind: str, texts: dict[tuple[str, str], ModelText]) -> None:
    """Special tokens and truncation are the library's; of a batch the first prompt is read."""
    reader = PromptReader(lambda _: texts[kind, "chatml"])
    for record in RENDERING[kind]["completions"]:
        prompt = reader.read("/v1/completions", json.dumps(record["body"]).encode())
        assert prompt.token_ids == record["token_ids"][0], record["body"]
