"""`warmroute chain`: the engine's own figures, and errors in one line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.cli import main

GOLDEN = Path(__file__).parents[1] / "golden"
VECTORS = json.loads((GOLDEN / "vectors/vllm-0.32-hashes.json").read_text())
TOKENIZER = str(GOLDEN / "tokenizer")


def _prompt_vectors() -> list[dict[str, Any]]:
    answered = [vector for vector in VECTORS["engine"] if vector["status"] == 200]
    return [vector for vector in answered if isinstance(vector["prompt_token_ids"][0], int)]


@pytest.fixture
def body_file(tmp_path: Path) -> Path:
    """A file with a body of 32 token ids."""
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"model": "tiny", "prompt": list(range(1, 33))}))
    return file


def _chain(body: Path | str, *options: str) -> int:
    words = ["chain", "--endpoint", "/v1/completions", "--body", str(body), "--tokenizer", TOKENIZER]
    return main([*words, *(() if "--block-size" in options else ("--block-size", "16")), *options])


@pytest.mark.parametrize("vector", _prompt_vectors(), ids=lambda v: f"{v['name']}-{v['algo']}-{v['block_size']}")
def test_json_of_recorded_requests(vector: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For every recorded request: the engine's ids, its digests of the prompt's blocks, and what a repeat hit."""
    file = tmp_path / "body.json"
    file.write_text(json.dumps(vector["body"]))
    words = ["chain", "--endpoint", vector["endpoint"], "--body", str(file), "--tokenizer", TOKENIZER, "--json"]
    assert main([*words, "--block-size", str(vector["block_size"]), "--hash-algo", vector["algo"]]) == 0
    printed = json.loads(capsys.readouterr().out)
    blocks = len(vector["prompt_token_ids"]) // vector["block_size"]
    assert printed == {
        "token_ids": vector["prompt_token_ids"],
        "block_hashes": vector["ref_block_hashes"][:blocks],
        "max_hit_tokens": vector["cached_repeat"],
    }


def test_adapter_salt_and_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--lora and the body's salt enter the chain: the library's own digests for a seedless sha256_cbor."""
    plain, lora, salt = (
        next(v for v in VECTORS["lib"] if v["name"] == name and v["algo"] == "sha256_cbor")
        for name in ("lib_plain", "lib_lora", "lib_salt")
    )
    file = tmp_path / "body.json"
    for vector, fields, options in (
        (plain, {}, []),
        (lora, {}, ["--lora", "ad=/adapters/ad"]),
        (salt, {"cache_salt": "s"}, []),
    ):
        file.write_text(json.dumps({"prompt": vector["token_ids"], **fields}))
        assert _chain(file, "--json", "--hash-algo", "sha256_cbor", *options) == 0
        assert json.loads(capsys.readouterr().out)["block_hashes"] == vector["block_hashes"]


def test_seed(body_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--seed is the engine's PYTHONHASHSEED: the golden chain of block size 4."""
    body_file.write_text(json.dumps({"prompt": list(range(1, 9))}))
    assert _chain(body_file, "--json", "--block-size", "4", "--hash-algo", "sha256", "--seed", "0") == 0
    assert json.loads(capsys.readouterr().out)["block_hashes"] == [
        "762b2e7e1520febd3a0aedb7358e8602facf3924440e18538fce057e23bae91d",
        "9e62b5a7ec298f33cb4c7d9e00b659874bb2432d23ad6879ad1746592a2b036b",
    ]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--body -` reads standard input."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"prompt": [1, 2, 3]}')))
    assert _chain("-", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"token_ids": [1, 2, 3], "block_hashes": [], "max_hit_tokens": 0}


def test_table(body_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json: a line a block, with its tokens and digest."""
    assert _chain(body_file, "--json") == 0
    digests = json.loads(capsys.readouterr().out)["block_hashes"]
    assert _chain(body_file) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.endswith(tuple(digests))]
    assert [(row[0], row[1], row[-1]) for row in rows] == [("0", "0-15", digests[0]), ("1", "16-31", digests[1])]


@pytest.mark.parametrize("as_json", [True, False])
def test_not_understood(as_json: bool, body_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that the router does not understand ends with 1 and its reason."""
    body_file.write_text(json.dumps({"prompt_embeds": "AAAA"}))
    assert _chain(body_file, *(["--json"] if as_json else [])) == 1
    printed = capsys.readouterr()
    assert "prompt_embeds" in printed.err
    if as_json:
        assert json.loads(printed.out)["reason"] == "prompt_embeds"


def test_errors_are_one_line_each_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that is wrong is said at once, a line each, and the exit code is 2."""
    words = ["chain", "--endpoint", "/v1/completions", "--block-size", "16", "--hash-algo", "xxhash"]
    assert main([*words, "--body", str(tmp_path / "none"), "--tokenizer", str(tmp_path / "nowhere")]) == 2
    body, tokenizer, seed = capsys.readouterr().err.splitlines()
    assert "--body" in body
    assert "name a file" in body
    assert "--tokenizer" in tokenizer
    assert "give the folder that holds tokenizer.json" in tokenizer
    assert "PYTHONHASHSEED" in seed


@pytest.mark.parametrize("size", ["0", "x", "4097", "9" * 5_000, "-1"])
@pytest.mark.parametrize("lora", ["name", "=p"])
def test_all_usage_errors_are_said_at_once(
    size: str, lora: str, body_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One wrong option does not hide the other; exit code 2, a line each."""
    assert _chain(body_file, "--block-size", size, "--lora", lora) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["--block-size", "--lora"]
