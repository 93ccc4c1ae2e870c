"""Token counts out of passing bytes."""

from __future__ import annotations

import json
import random
import tracemalloc

import pytest

from router.proxy.usage import OBJECT_BYTES, UsageTap

USAGE = {
    "prompt_tokens": 70,
    "total_tokens": 86,
    "completion_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 48},
}
JSON_ANSWER = json.dumps(
    {"id": "x", "choices": [{"message": {"content": 'she said "usage": {"prompt_tokens": 9}'}}], "usage": USAGE}
).encode()
USAGE_AS_VLLM = b"".join(
    (
        JSON_ANSWER[: JSON_ANSWER.rfind(b'"usage"')],
        b'"usage":{"prompt_tokens":70,"total_tokens":86,"completion_tokens":16,"prompt_tokens_details":',
        b'{"cached_tokens":48}},"kv_transfer_params":null}',
    )
)
EVENTS = (
    b"".join(
        b"data: " + json.dumps(event, ensure_ascii=False).encode() + end + end
        for end in (b"\n", b"\r\n")
        for event in (
            {"choices": [{"delta": {"content": "日本語 👩‍🚀 é"}}], "usage": None},
            {"choices": [{"delta": {"content": "usage"}}]},
            {"choices": [], "usage": USAGE},
        )
    )
    + b": ping\n\ndata: [DONE]\n\n"
)


def counts(tap: UsageTap) -> tuple[int | None, int | None, int | None]:
    return tap.prompt_tokens, tap.completion_tokens, tap.cached_tokens


@pytest.mark.parametrize(
    "text", [JSON_ANSWER, EVENTS, USAGE_AS_VLLM, JSON_ANSWER.replace(b'"usage": {"prompt', b'"usage"\r\n : {"prompt')]
)
def test_any_split_gives_the_same_counts(text: bytes) -> None:
    """Wherever the bytes are cut in two, and byte by byte, the counts are those of the usage object."""
    for cut in range(len(text)):
        tap = UsageTap()
        tap.feed(text[:cut])
        tap.feed(text[cut:])
        assert counts(tap) == (70, 16, 48)
    tap = UsageTap()
    for at in range(len(text)):
        tap.feed(text[at : at + 1])
    assert counts(tap) == (70, 16, 48)


def test_the_last_usage_counts() -> None:
    """With usage in every chunk (continuous_usage_stats) the last one holds."""
    tap = UsageTap()
    for completion in (1, 2, 3):
        tap.feed(b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": %d}}\n\n' % completion)
    assert counts(tap) == (5, 3, None)


@pytest.mark.parametrize(
    "text",
    [
        b'{"content": "\\"usage\\": {\\"prompt_tokens\\": 9}"}',
        b'{"role": "usage", "x": {"prompt_tokens": 9}}',
        b'{"usage": null, "x": {"prompt_tokens": 9}}',
        b'{"usage": [{"prompt_tokens": 9}]}',
        b'{"usage": {"prompt_tokens": -1, "completion_tokens": true, "prompt_tokens_details": 3}}',
        b'{"usage": {"prompt_tokens": }}',
        b'{"usage": {"prompt_tokens": 9' + b" " * OBJECT_BYTES + b"}}",
    ],
)
def test_what_is_no_usage_is_not_counted(text: bytes) -> None:
    """Text, null, wrong types, broken and endless objects leave the counts unknown."""
    tap = UsageTap()
    tap.feed(text)
    assert counts(tap) == (None, None, None)


def test_other_apis_name_them_otherwise() -> None:
    """The responses and messages APIs say input_tokens and output_tokens."""
    tap = UsageTap()
    tap.feed(b'{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":0},"output_tokens":2}}')
    assert counts(tap) == (7, 2, 0)


def test_memory_is_bounded() -> None:
    """Megabytes that look like the beginning of usage leave less than 64 KiB behind."""
    tap = UsageTap()
    pieces = [b'"usage": {' * 100, b'"usage"' + b" " * 5_000, b'"usag', b"{" * 1_000]
    chance = random.Random(1)
    tracemalloc.start()
    for _ in range(5_000):
        tap.feed(chance.choice(pieces))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 65_536
