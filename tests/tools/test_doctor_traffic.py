"""`warmroute doctor --traffic`: why hits are low, from requests whose overlap is known by construction."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from router.cli import main
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.prompt import Kind, Prompt
from router.telemetry.traces import Tracer
from router.tools.doctor_report import Status
from router.tools.doctor_requests import Request, common_tokens, of_decision
from router.tools.doctor_traffic import judge
from router.tools.doctor_turns import rerendered

TOKENIZER = str(Path(__file__).parents[1] / "golden" / "tokenizer")
SIZE = 16
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, SIZE)
TRACER = Tracer(bytes(32))


def traced(ids: list[int], salt: str | None = None, exact: bool = False, **facts: Any) -> Request:
    """A request with these tokens, as a router's trace gives it, or with its ids."""
    prompt = Prompt(Kind.CHAT, "tiny", True, ids, len(ids), salt=salt)
    trace = TRACER.trace(prompt, prompt.chain(SCHEME, None), SIZE)
    assert trace is not None
    trace = json.loads(json.dumps(trace))
    request = of_decision({"request_id": "x", "model": "tiny", "prompt_tokens": len(ids), "trace": trace})
    request.ids = ids if exact else None
    for name, value in facts.items():
        setattr(request, name, value)
    return request


def tokens(count: int, seed: int) -> list[int]:
    """Token ids that no other seed gives."""
    rng = random.Random(seed)
    return [rng.randrange(100, 100_000) for _ in range(count)]


def found(requests: list[Request]) -> dict[str, Any]:
    """Each result by its id."""
    return {result.id: result for result in judge(requests)}


@pytest.mark.parametrize(("shared", "told"), [(0, 0), (5, 5), (37, 37), (1_000, 1_000), (1_500, 1_488)])
def test_traces_tell_how_much_two_prompts_share(shared: int, told: int) -> None:
    """To the token within the first 1,024, and to the block (of 16) behind them."""
    one, other = (traced(tokens(shared, 1) + tokens(600, seed)) for seed in (2, 3))
    assert common_tokens(one, other) in (told, told + 1)  # one more by chance, 1 in 256


def test_no_trace_holds_token_ids() -> None:
    """Neither ids nor text: a token's bytes are nowhere in the trace, and another key gives other hashes."""
    prompt = Prompt(Kind.CHAT, "tiny", True, [7_777_777] * 64, 64, salt="salt-of-a-tenant")
    one, other = (Tracer(bytes([n]) * 32).trace(prompt, prompt.chain(SCHEME, None), SIZE) for n in (1, 2))
    assert one is not None
    assert other is not None
    assert "7777777" not in json.dumps(one)
    assert "salt-of-a-tenant" not in json.dumps(one)
    assert one["steps"] != other["steps"]
    assert one["salt"] != other["salt"]


def test_a_prompt_that_was_not_understood_leaves_no_trace() -> None:
    """Nothing is known of it."""
    assert TRACER.trace(Prompt(Kind.CHAT, "tiny", True, None, 10), [], SIZE) is None


def test_something_that_changes_in_the_first_block() -> None:
    """Ids of 3 tokens at token 5, then 800 equal tokens: block 0, token 5, and nearly all that could be shared."""
    head, body = tokens(5, 1), tokens(800, 2)
    result = found([traced(head + tokens(3, 10 + n) + body) for n in range(10)])["traffic.divergence"]
    assert result.status is Status.WRONG
    [finding] = result.findings
    assert finding.detail.startswith("9 of 10 requests part from an earlier one in block 0 (tokens 0 to 15), ")
    assert "most often at token 5," in finding.detail
    lost = int(finding.detail.partition("some ")[2].split()[0])
    assert 700 < lost <= 800


def test_something_that_changes_further_on() -> None:
    """A date behind 100 shared tokens is in block 6 (tokens 96 to 111)."""
    requests = [traced(tokens(100, 1) + tokens(4, 10 + n) + tokens(400, 2)) for n in range(6)]
    [finding] = found(requests)["traffic.divergence"].findings
    assert "in block 6 (tokens 96 to 111), most often at token 100," in finding.detail


def test_prompts_that_have_nothing_in_common() -> None:
    """No fault is found where there is nothing to share."""
    results = found([traced(tokens(200, n)) for n in range(10)])
    assert results["traffic.divergence"].status is Status.FINE
    assert "0% of 2000 prompt tokens" in results["traffic.share"].findings[0].detail


def test_prompts_of_different_salts_are_not_compared() -> None:
    """What salts keep apart is meant to be apart."""
    requests = [traced(tokens(3, 10 + n) + tokens(300, 1), salt=str(n)) for n in range(8)]
    assert found(requests)["traffic.divergence"].status is Status.FINE


def test_the_share_that_a_cache_could_serve() -> None:
    """Two of three prompts of 10 blocks share 8 with the first: 256 of 480 tokens; what can't hit is told."""
    shared = tokens(8 * SIZE, 1)
    requests = [traced(shared + tokens(2 * SIZE, seed)) for seed in (2, 3, 4)]
    [finding] = found(requests)["traffic.share"].findings
    assert finding.detail == "53% of 480 prompt tokens could be found in one endless cache"
    short = traced(tokens(SIZE, 9))
    unread = Request("x", "tiny", 50, reason="media")
    [finding] = found([*requests, short, unread])["traffic.share"].findings
    assert finding.lines == (
        "1 of 5 requests begin with a block that none before had",
        "1 can't hit: shorter than a block and a token",
        "1 were not understood and placed by load: media",
    )


def test_less_delivered_than_could_be() -> None:
    """A warning when the engines delivered less than four fifths of what one cache would have."""
    ids = tokens(161, 1)
    full = [traced(ids, cached_tokens=160 if n else 0) for n in range(5)]
    assert found(full)["traffic.share"].status is Status.FINE
    spread = [traced(ids, cached_tokens=160 if n > 2 else 0) for n in range(5)]
    assert found(spread)["traffic.share"].status is Status.WARNING


def test_padding_that_completes_a_shared_block() -> None:
    """110 shared tokens are 6 blocks and 14 tokens: 2 more would complete the seventh."""
    requests = [traced(tokens(110, 1) + tokens(90, 10 + n), exact=True) for n in range(6)]
    [finding] = found(requests)["traffic.padding"].findings
    assert finding.status is Status.WARNING
    assert "5 requests share 110 tokens with an earlier one: 6 blocks, and 14 tokens of the next" in finding.detail
    assert "2 tokens of padding" in finding.detail


def test_padding_that_would_cost_more_than_it_saves() -> None:
    """98 shared tokens leave 2 in the seventh block: 14 tokens of padding are not advised."""
    requests = [traced(tokens(98, 1) + tokens(90, 10 + n), exact=True) for n in range(6)]
    assert found(requests)["traffic.padding"].status is Status.FINE


@pytest.mark.parametrize(
    ("cached", "status"),
    [
        (192, Status.FINE),  # prompt and answer: 100 + 100 - 1 = 199 tokens, 12 blocks
        (96, Status.WRONG),  # the prompt's own 6 blocks alone
        (0, Status.FINE),  # evicted: no matter of rendering
    ],
)
def test_answers_that_the_next_turn_renders_anew(cached: int, status: Status) -> None:
    """The next turn on the same unit found the prompt before it, but not its answer."""
    first = traced(tokens(100, 1), unit="r0/0", completion_tokens=100, cached_tokens=0)
    turn = traced(tokens(100, 1) + tokens(140, 2), unit="r0/0", cached_tokens=cached)
    [finding] = rerendered([first, turn])
    assert finding.status is status
    assert ("96 tokens together" in finding.detail) is (status is Status.WRONG)


def test_a_next_turn_elsewhere_says_nothing_of_rendering() -> None:
    """Another unit never had the answer."""
    first = traced(tokens(100, 1), unit="r0/0", completion_tokens=100, cached_tokens=0)
    assert rerendered([first, traced(tokens(100, 1) + tokens(140, 2), unit="r1/0", cached_tokens=0)]) == []


def test_bodies_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text may be shown: it is the user's own. Dropped reasoning and rewritten arguments are told, too."""
    shelves = " ".join(f"Shelf {number} holds the books of room {number * 7 % 31}." for number in range(20))
    call = {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"shelf":1}'}}
    lines = []
    for number in range(6):
        system = {"role": "system", "content": f"It is 10:0{number} now. {shelves}"}
        answer = {"role": "assistant", "content": None, "reasoning_content": "Let me look.", "tool_calls": [call]}
        messages = [system, {"role": "user", "content": "Where?"}, answer, {"role": "user", "content": "Thanks"}]
        lines.append(json.dumps({"model": "tiny", "messages": messages}))
    batch = {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "x"}}
    file = tmp_path / "bodies.jsonl"
    file.write_text("\n".join([*lines, json.dumps(batch)]) + "\n")
    assert main(["doctor", "--bodies", str(file), "--tokenizer", TOKENIZER, "--json"]) == 1
    checks = {check["id"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    [finding] = checks["traffic.divergence"]["findings"]
    assert "block 0" in finding["detail"]
    assert any("It is 10:00 now" in line for line in finding["lines"])
    assert any("It is 10:01 now" in line for line in finding["lines"])
    told = [finding["detail"] for finding in checks["traffic.rerendered"]["findings"]]
    assert told == [
        "6 of 6 answers in the conversations: their reasoning is not rendered",
        "6 of 6 answers in the conversations: tool arguments are rendered otherwise than they came",
    ]


def test_errors_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that is no body, and a tokenizer that is missing, at once; exit code 2."""
    file = tmp_path / "bodies.jsonl"
    file.write_text('{"prompt": "x"}\nnothing\n')
    assert main(["doctor", "--bodies", str(file)]) == 2
    tokenizer, line = capsys.readouterr().err.splitlines()
    assert "--tokenizer: is needed for --bodies" in tokenizer
    assert "line 2 is no JSON object" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give --router URL, --engine URL or --bodies FILE"),
        (["--router", "http://a:1", "--engine", "http://b:1"], "give one of them"),
        (["--engine", "ftp://b"], "is no http://HOST:PORT"),
        (["--engine", "http://b:1", "--traffic"], "needs a router or a file"),
        (["--engine", "http://b:1", "--chat-template", "x"], "give --tokenizer DIR too"),
        (["--engine", "http://b:1", "--tokenizer", "/nowhere"], "/nowhere"),
        (["--engine", "http://b:1", "--api-key-file", "/nowhere"], "can't read /nowhere"),
    ],
)
def test_usage_errors(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each says what would be right; exit code 2."""
    assert main(["doctor", *words]) == 2
    assert told in capsys.readouterr().err
