"""Streamed answers, as the engine writes them."""

from __future__ import annotations

from loadtest.workloads.answers import StreamedAnswer, chat_body

STREAM = [
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n',
    b"\n",
    b'data: {"choices":[{"index":0,"delta":{"content":"warm"},"token_ids":[7]}]}\r\n',
    b": keep-alive\n",
    b'data: {"choices":[{"index":0,"delta":{"content":" route"},"finish_reason":"length","token_ids":[8,9]}]}\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":48}}}\n',
    b"data: [DONE]\n",
]


def test_a_stream_is_read_to_its_end() -> None:
    """Text, token ids and usage are taken from where the engine puts them."""
    answer = StreamedAnswer()
    for line in STREAM:
        answer.feed(line)
    assert (answer.text, answer.token_ids, answer.done, answer.error) == ("warm route", [7, 8, 9], True, None)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (70, 3, 48)


def test_the_first_token_is_the_first_chunk_with_text() -> None:
    """The role's chunk, comments and usage carry no token: TTFT counts from the first that does."""
    answer = StreamedAnswer()
    assert [answer.feed(line) for line in STREAM] == [False, False, True, False, True, False, False]


def test_an_engine_that_does_not_tell_cached_tokens_leaves_them_unknown() -> None:
    """Unknown is not 0: a hit rate must not be made of it."""
    answer = StreamedAnswer()
    answer.feed(b'data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":3}}')
    assert (answer.prompt_tokens, answer.cached_tokens) == (70, None)


def test_an_error_inside_the_stream_is_kept() -> None:
    """After a 200 an engine can still fail, in the stream."""
    answer = StreamedAnswer()
    answer.feed(b'data: {"error":{"message":"out of blocks","code":500}}')
    assert answer.error == "out of blocks"


def test_nonsense_is_an_error_and_no_crash() -> None:
    """A chunk that is not JSON is counted against the endpoint."""
    answer = StreamedAnswer()
    assert answer.feed(b"data: {oops") is False
    assert answer.error == "a chunk of the stream is not JSON"


def test_a_body_asks_for_usage_and_an_exact_length() -> None:
    """Streams carry usage only when asked; the answer's length is fixed so that runs compare."""
    body = chat_body("tiny", [{"role": "user", "content": "hello"}], 12)
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["stream"], body["max_tokens"], body["ignore_eos"]) == ("tiny", True, 12, True)
