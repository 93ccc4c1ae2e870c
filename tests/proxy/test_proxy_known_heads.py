"""A head that came before is taken for the same, and only then."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.errors import OverloadedError
from router.proxy.answer_head import judge
from router.proxy.exchange import Framing
from router.proxy.hop_by_hop import engine_head
from router.proxy.known_heads import KnownAnswer, KnownRequest, length_digits
from router.proxy.paths import AllowedPaths, split_target
from router.proxy.request_head import RequestHead

PATHS = AllowedPaths(["/v1/chat/completions"])
HEAD = (
    b"POST /v1/chat/completions?a=%%20b HTTP/1.1\r\nHost: r\r\nX-One:  a \r\nconnection: x-two, keep-alive\r\n"
    b"X-Two: gone\r\nContent-Length: %b\r\nAccept: */*\r\nx-one: B\r\nExpect: nothing\r\n\r\n"
)


def parsed(raw: bytes) -> RequestHead:
    head = RequestHead()
    head.feed(raw)
    return head


def known(raw: bytes) -> KnownRequest:
    digits = length_digits(raw)
    assert digits is not None
    head = parsed(raw)
    raw_path, query = split_target(head.target)
    path = PATHS.match(raw_path)
    assert path is not None
    return KnownRequest(raw, digits, head, PATHS, path, query)


def facts(head: RequestHead) -> dict[str, object]:
    names = [name for name in dir(head) if not name.startswith("_") and not callable(getattr(head, name))]
    rest = [pair for pair in head.headers if pair[0].lower() != b"content-length"]
    return {name: getattr(head, name) for name in names if name not in ("content_length", "headers")} | {
        "headers": rest
    }


@given(st.integers(0, 10**17), st.integers(0, 10**17), st.binary(max_size=20))
def test_a_head_with_another_length_says_what_it_would_say_parsed(first: int, second: int, before: bytes) -> None:
    """Only the length is another; where it begins and ends in a segment does not matter."""
    one = known(HEAD % str(first).encode())
    again = HEAD % str(second).encode()
    assert one.fits(before + again + b"body", len(before), PATHS)
    assert (one.length, one.end) == (second, len(before) + len(again))
    assert facts(one.head) == facts(parsed(again))
    request = one.request(lambda: "id", "c:1", 1.0)
    request.body = b"x" * 7
    quick = engine_head(request, b"e:1", None)
    request.crossing = None
    assert quick == engine_head(request, b"e:1", None)
    assert b"x-two" not in quick.lower()
    assert re.findall(rb"(?i)x-one: *(.*)\r", quick) == [b"a", b"B"]


@example(b"\n", len(HEAD) - 2, 0)
@given(st.binary(max_size=3), st.integers(0, len(HEAD) - 2), st.integers(0, 3))
def test_any_other_byte_is_another_head(put: bytes, place: int, cut: int) -> None:
    """Whatever is put in or taken out anywhere: the same head only if it begins, but for digits, with its bytes."""
    raw = HEAD % b"17"
    changed = raw[:place] + put + raw[place + cut :]
    begin, end = length_digits(raw) or (0, 0)
    after = raw[end:]
    same = re.match(re.escape(raw[:begin]) + rb"[0-9]{1,18}" + re.escape(after), changed) is not None
    assert known(raw).fits(changed, 0, PATHS) is same


@pytest.mark.parametrize(
    "digits", [b"", b" 1", b"1 ", b"+1", b"-1", b"1_0", b"0x1", b"9" * 19, b"1\r\nX: 1", "\u0661".encode()]
)
def test_what_is_no_length_is_not_taken(digits: bytes) -> None:
    """Spellings that a length might have elsewhere are left to the parser, which refuses them."""
    assert not known(HEAD % b"17").fits(HEAD % digits, 0, PATHS)


def test_heads_are_not_known_under_another_allow_list() -> None:
    """A reload that takes a path out holds for connections that used it."""
    raw = HEAD % b"17"
    assert not known(raw).fits(raw, 0, AllowedPaths(["/v1/completions"]))


@pytest.mark.parametrize(
    "raw", [HEAD.replace(b"Content-Length", b"X") % b"1", HEAD % (b"1" * 19), HEAD % b"1" + b"x" * 9_999]
)
def test_heads_without_a_length_or_long_ones_are_not_kept(raw: bytes) -> None:
    """There is nothing to compare around, or it would hold memory."""
    assert length_digits(raw) is None


@given(st.integers(0, 10**17))
def test_an_answer_with_another_length_says_what_it_would_say_parsed(length: int) -> None:
    """Status, reason and header lines are as they came, in their order, with the length of this one."""
    lines = [(b"date", b"today"), (b"Content-Length", b"17"), (b"connection", b"x-gone"), (b"x-gone", b"1")]
    lines += [(b"content-type", b"application/json"), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")]
    raw = b"HTTP/1.1 201 Fine\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in lines) + b"\r\n"
    head = judge(201, b"Fine", lines, bodiless=False)
    digits = length_digits(raw)
    assert head is not None
    assert digits is not None
    one = KnownAnswer(raw, digits, head, True)
    again = raw.replace(b"17", str(length).encode())
    assert one.matches(again + b"body", 0)
    assert one.end == len(again)
    answer = one.answer()
    assert (answer.status, answer.reason, answer.framing, answer.length) == (201, b"Fine", Framing.LENGTH, length)
    assert answer.readable
    kept = [pair for pair in lines if pair[0] not in (b"connection", b"x-gone")]
    assert answer.lines == b"".join(b"%b: %b\r\n" % pair for pair in kept).replace(b"17", str(length).encode())
    assert answer.headers == []


async def test_a_head_that_was_known_passes_the_gate_each_time(harness, engine, wire) -> None:
    """Keys that a reload withdraws, or tenants that it brings, hold for connections that are open, body or not."""

    class Gate:
        def admit(self, request):
            assert request.headers[0] == (b"Host", b"router")
            return OverloadedError("not now") if self.shut else None

        shut = False

    one = await engine()
    item = await harness(one)
    client = await item.client()
    body = wire.chat_body()
    assert (await client.ask(wire.post(body))).status == 200
    item.plane.door.gate = gate = Gate()
    assert (await client.ask(wire.post(body))).status == 200
    gate.shut = True
    assert (await client.ask(wire.post(body))).code == "overloaded"
    gate.shut = False
    assert (await client.ask(wire.post(body))).status == 200
    item.plane.door.gate = None
    assert len(one.asked) == 3
    item.assert_accounted()


async def test_head_with_a_body_is_answered_each_time(harness, engine, wire) -> None:
    """A head that was known says HEAD, too: the answer's length is of a body that never comes."""

    async def behave(asked, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")

    item = await harness(await engine(behave))
    client = await item.client()
    body = wire.chat_body()
    for _ in range(3):
        answer = await client.ask(wire.post(body).replace(b"POST", b"HEAD", 1), bodiless=True)
        assert (answer.status, answer.one("content-length")) == (200, "5")
    item.assert_accounted()
