"""What an engine serves, out of its list of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.kv.engine_models import parse_models
from router.kv.registration import RegisteredModel


def test_the_real_engines_list_is_read(golden: Path) -> None:
    """The recorded `/v1/models` gives name, root and context length."""
    cases = json.loads((golden / "engine_http.json").read_text())["cases"]
    answer = next(case["json"] for case in cases if case["name"] == "models")
    assert parse_models(json.dumps(answer).encode()) == (RegisteredModel("tiny", "/models/tiny", None, 2048),)


def test_an_entry_without_a_name_is_left_out() -> None:
    """The others count; fields of another type are as if they were not there."""
    entries = [{"id": 3}, 7, {"id": ""}, {"id": "sql", "root": 1, "parent": "tiny", "max_model_len": "x"}]
    assert parse_models(json.dumps({"data": entries}).encode()) == (RegisteredModel("sql", "sql", "tiny", None),)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"data": 3}', b"\xff", b"[" * 100_000])
def test_rubbish_is_no_list(body: bytes) -> None:
    """Whatever an engine answers, it is a list of models or none."""
    assert parse_models(body) is None
