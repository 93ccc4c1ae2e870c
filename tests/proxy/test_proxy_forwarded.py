"""Engines are told where a request came from, and believe nobody whom the operator does not trust."""

from __future__ import annotations

from typing import Any

import pytest

FORGED = ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: https", "X-Forwarded-Port: 9", "Forwarded: for=6.6.6.6"]


async def received(harness: Any, engine: Any, wire: Any, headers: list[str], **forwarded: Any) -> list[tuple[str, str]]:
    """The lines about the client that an engine gets."""
    one = await engine()
    item = await harness(one, forwarded=forwarded)
    answer = await item.ask(wire.post(wire.chat_body(), headers=["Via: 1.1 edge", *headers]))
    assert answer.status == 200
    return [
        (n.lower(), v) for n, v in one.asked[-1].headers if n.lower().startswith(("x-forwarded", "forwarded", "via"))
    ]


async def test_off_lets_everything_cross(harness: Any, engine: Any, wire: Any) -> None:
    """The default: not a byte of it changes."""
    found = await received(harness, engine, wire, FORGED)
    assert found == [("via", "1.1 edge"), *((n.lower(), v) for n, v in (line.split(": ") for line in FORGED))]


async def test_replace_believes_nobody(harness: Any, engine: Any, wire: Any) -> None:
    """What the client says is gone."""
    found = await received(harness, engine, wire, FORGED, mode="replace")
    wanted = [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-proto", "http"), ("x-forwarded-host", "router")]
    assert found == [("via", "1.1 edge"), *wanted]


async def test_append_keeps_what_a_trusted_proxy_says(harness: Any, engine: Any, wire: Any) -> None:
    """And adds the proxy itself."""
    headers = ["X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 2.2.2.2", "X-Forwarded-Proto: https"]
    found = await received(harness, engine, wire, headers, mode="append", trusted=["127.0.0.0/8"])
    assert ("x-forwarded-for", "1.1.1.1, 2.2.2.2, 127.0.0.1") in found
    assert ("x-forwarded-proto", "https") in found
    assert ("x-forwarded-host", "router") in found


async def test_append_replaces_what_others_say(harness: Any, engine: Any, wire: Any) -> None:
    """A peer that is no trusted proxy is a client."""
    found = await received(harness, engine, wire, FORGED, mode="append", trusted=["10.0.0.0/8"])
    assert ("x-forwarded-for", "127.0.0.1") in found
    assert not [pair for pair in found if "6.6.6.6" in pair[1]]


async def test_the_standard_header_and_via(harness: Any, engine: Any, wire: Any) -> None:
    """RFC 7239, and RFC 9110, 7.6.3: each proxy adds itself behind the others."""
    found = await received(
        harness,
        engine,
        wire,
        ["Forwarded: for=1.1.1.1"],
        mode="append",
        trusted=["127.0.0.1"],
        style="forwarded",
        via="wr",
    )
    assert found == [
        ("via", "1.1 edge"),
        ("forwarded", "for=1.1.1.1, for=127.0.0.1;proto=http;host=router"),
        ("via", "1.1 wr"),
    ]


@pytest.mark.parametrize(
    ("client", "wanted"),
    [
        ("::1:5000", b'for="[::1]";proto=http;host="a:80"'),
        ("fe80::1%eth0:5", b'for="[fe80::1]";proto=http;host="a:80"'),
        ("", b'for=unknown;proto=http;host="a:80"'),
    ],
)
def test_addresses_and_hosts_are_quoted_as_they_must_be(client: str, wanted: bytes) -> None:
    """IPv6 in brackets and quotes; nothing a client sends ends a quoted host early."""
    from router.config_clients import ForwardedConfig
    from router.proxy.exchange import Request
    from router.proxy.forwarded import ForwardedHeaders

    config = ForwardedConfig.model_validate({"mode": "replace", "style": "forwarded"})
    request = Request("id", "GET", b"/", "/", b"", [(b"Host", b'a:80"')], "1.1", client, 0.0)
    ForwardedHeaders(config).mark(request, secure=False)
    assert dict(request.headers)[b"forwarded"] == wanted


@pytest.mark.parametrize(
    ("forwarded", "said"),
    [
        ({"mode": "append"}, "name them"),
        ({"mode": "replace", "via": "a b"}, "forwarded.via"),
        ({"trusted": ["nobody"]}, "forwarded.trusted"),
    ],
)
def test_what_can_not_be_meant_is_a_problem(forwarded: dict[str, Any], said: str) -> None:
    """At start."""
    from router.config_file import parse
    from router.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=said):
        parse({"models": [{"name": "m"}], "replicas": [{"url": "http://h:1"}], "forwarded": forwarded}, {})
