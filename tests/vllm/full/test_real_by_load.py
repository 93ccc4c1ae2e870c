"""Requests whose prompt the router does not read, at real engines: placed by load, answered, no harm to the rest."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.vllm.engines import VENV, call
from tests.vllm.full.generated import generate
from tests.vllm.full.line import Line
from tests.vllm.full.plans import PLANS, Sends

pytestmark = pytest.mark.vllm_full

_VECTORS = [pytest.param(plan, id=plan.name) for plan in PLANS if plan.sends is Sends.INPUTS]
_EMBEDS = [pytest.param(plan, id=plan.name) for plan in PLANS if "--enable-prompt-embeds" in plan.options]
_PICTURES = [pytest.param(plan, id=plan.name) for plan in PLANS if plan.sends is Sends.PICTURES]
QUERY, DOCUMENTS = "where is letter 5?", ["Letter 5 is in bag 7. " * 12, "The train is late. " * 12]
EMBEDS = """
import base64, io, torch
out = io.BytesIO()
torch.save(torch.randn(100, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16), out)
print(base64.b64encode(out.getvalue()).decode())
"""
"""Makes the embeddings of 100 tokens, for a model of hidden 64."""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS}),
        ("/score", {"queries": QUERY, "documents": DOCUMENTS}),
        ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS}),
        ("/v2/rerank", {"query": QUERY, "documents": DOCUMENTS}),
    ],
)
@pytest.mark.parametrize("line", _VECTORS, indirect=True)
def test_scores(line: Line, seed: str, path: str, body: dict[str, Any]) -> None:
    """How pairs are put together is the model's: no prediction is made of them, and others stay exact."""
    answer = line.check_by_load(path, body, "scoring")
    assert len(answer.json.get("data") or answer.json["results"]) == 2
    line.check(generate(seed, line.plan, 10_000))


@pytest.mark.parametrize("line", _EMBEDS, indirect=True)
def test_prompt_embeds(line: Line, seed: str) -> None:
    """A prompt of embeddings, twice: the engine stores and hits its blocks, and text beside it stays exact."""
    made = subprocess.run([str(VENV / "bin" / "python"), "-c", EMBEDS], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    for expected in (0, 96):
        answer = line.check_by_load(
            "/v1/completions",
            {"prompt_embeds": made.stdout.strip(), "max_tokens": 1, "temperature": 0},
            "prompt_embeds",
        )
        assert answer.cached == expected
    line.check(generate(seed, line.plan, 10_000))


@pytest.mark.parametrize("line", _PICTURES, indirect=True)
def test_pictures_without_a_rendering(line: Line, seed: str) -> None:
    """Where no replica is asked, what stands before the first picture is known, exact, and counted as such."""
    case = next(case for case in (generate(seed, line.plan, 4 * n) for n in range(10_000, 11_000)) if starts_long(case))
    line.check(case)
    router = line.second_router(limits={"remote_tokenize_requests": 0})
    explained = call(router, "POST", f"/admin/explain?tokens=1&path={case.path}", case.raw).json
    known = explained["token_ids"]
    whole = call(line.router, "POST", f"/admin/explain?tokens=1&path={case.path}", case.raw).json
    assert explained["prompt_reason"] == "media"
    assert known == whole["token_ids"][: len(known)]
    assert 32 <= len(known) <= whole["media"][0]["offset"]
    assert explained["matched_tokens"] == len(known) // 32 * 32
    assert call(router, "POST", case.path, case.raw).predicted == len(known) // 32 * 32
    text = call(router, "GET", "/metrics").text
    assert 'warmroute_not_understood_total{reason="media"} 1.0' in text


def starts_long(case: Any) -> bool:
    """Whether a chat begins with a system prompt of some blocks."""
    messages = case.body["messages"]
    return messages[0]["role"] == "system" and len(messages[0]["content"]) > 200
