"""TLS, client certificates, passwords by file and Unix sockets. This Valkey has no TLS: what ends it is before it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import redis
import trustme

from router.kv.client import faults
from router.kv.client.client import RedisClient


class Terminator:
    """Ends TLS, and passes on what is inside."""

    def __init__(self, target: str, context: ssl.SSLContext) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 0)
        self._context = context
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        self._writers -= {writer, far_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    """Who signs; its certificate is in ca.pem."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return ca


@pytest.fixture
async def terminator(redis_url: str, authority: trustme.CA) -> AsyncIterator[Callable[..., Any]]:
    """`await terminator("localhost", wants_client=True)`: TLS with a certificate for these names."""
    started: list[Terminator] = []

    async def start(*names: str, wants_client: bool = False) -> Terminator:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(context)
        if wants_client:
            authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        started.append(Terminator(redis_url, context))
        await started[-1].start()
        return started[-1]

    yield start
    for one in started:
        await one.stop()


async def refusal(url: str, timeout_s: float = 5.0) -> str:
    """What an operator is told when this URL is used."""
    client = RedisClient(url, timeout_s)
    try:
        with pytest.raises((redis.RedisError, OSError)) as caught:
            await client.run("x", "GET", "x")
    finally:
        await client.close()
    return faults.told(caught.value)


async def test_agents_and_routers_meet_over_tls(
    terminator: Any, tmp_path: Path, agents: Any, run_feeds: Any, eventually: Any
) -> None:
    """With the CA given, blocks of an agent reach a router."""
    at = await terminator("localhost")
    url = f"rediss://localhost:{at.port}/0?ssl_ca_certs={quote(str(tmp_path / 'ca.pem'))}"
    (writing,) = await agents(url, ["r0/0"])
    writing.store(1, 2)
    router = run_feeds(redis=url)
    await eventually(lambda: router.held("r0/0") == {1, 2}, 30.0)


async def test_a_certificate_of_nobody_known_is_refused(terminator: Any) -> None:
    """Without the CA there is no connection, and what to give is said; `ssl_cert_reqs=none` trusts whoever answers."""
    at = await terminator("localhost")
    assert "ssl_ca_certs=" in await refusal(f"rediss://localhost:{at.port}/0")
    client = RedisClient(f"rediss://localhost:{at.port}/0?ssl_cert_reqs=none", 5.0)
    assert await client.run("x", "PING")
    await client.close()


async def test_a_certificate_of_another_host_is_refused_unless_said_otherwise(terminator: Any, tmp_path: Path) -> None:
    """The name is checked by default; `ssl_check_hostname=no` leaves it, and the signature is checked all the same."""
    at = await terminator("elsewhere.example")
    url = f"rediss://localhost:{at.port}/0?ssl_ca_certs={quote(str(tmp_path / 'ca.pem'))}"
    assert "another name" in await refusal(url)
    client = RedisClient(f"{url}&ssl_check_hostname=no", 5.0)
    assert await client.run("x", "PING")
    await client.close()
    assert "ssl_ca_certs=" in await refusal(f"rediss://localhost:{at.port}/0?ssl_check_hostname=no")


async def test_a_client_certificate_is_shown_where_one_is_wanted(
    terminator: Any, tmp_path: Path, authority: trustme.CA
) -> None:
    """Mutual TLS: with certificate and key it works, without it is said what is missing."""
    at = await terminator("localhost", wants_client=True)
    cert = authority.issue_cert("agent")
    cert.private_key_pem.write_to_path(str(tmp_path / "own.key"))
    cert.cert_chain_pems[0].write_to_path(str(tmp_path / "own.pem"))
    url = f"rediss://localhost:{at.port}/0?ssl_ca_certs={quote(str(tmp_path / 'ca.pem'))}"
    own = f"&ssl_certfile={quote(str(tmp_path / 'own.pem'))}&ssl_keyfile={quote(str(tmp_path / 'own.key'))}"
    client = RedisClient(url + own, 5.0)
    assert await client.run("x", "PING")
    await client.close()
    assert await refusal(url)


async def test_tls_to_a_port_without_it_is_named(redis_url: str) -> None:
    """rediss:// to a port that waits for plain commands: the line leads there."""
    assert "speaks TLS" in await refusal(f"rediss://127.0.0.1:{urlsplit(redis_url).port}/0", 1.0)


async def test_a_password_in_a_file_may_change_while_all_runs(redis_url: str, tmp_path: Path, eventually: Any) -> None:
    """The file is read at each connection; a wrong one is named without its content, as is one that is not there."""
    file = tmp_path / "password"
    file.write_text("first-7777\n")
    with redis.Redis.from_url(redis_url) as server:
        server.execute_command("ACL", "SETUSER", "filed", "reset", "on", ">first-7777", "~*", "+@all")
        client = RedisClient(redis_url.replace("redis://", "redis://filed@") + f"?password_file={file}", 5.0)
        try:
            assert await client.run("x", "PING")
            server.execute_command("ACL", "SETUSER", "filed", "resetpass", ">second-8888")
            server.execute_command("CLIENT", "KILL", "USER", "filed")
            with pytest.raises(redis.RedisError) as caught:
                await _twice(client)
            assert "first-7777" not in faults.told(caught.value)
            file.write_text("second-8888\n")
            await eventually(lambda: _answers(client))
            file.unlink()
            server.execute_command("CLIENT", "KILL", "USER", "filed")
            with pytest.raises(redis.RedisError) as caught:
                await _twice(client)
            assert "password_file can't be read" in faults.told(caught.value)
        finally:
            await client.close()
            server.execute_command("ACL", "DELUSER", "filed")


async def _twice(client: RedisClient) -> None:
    """The first command may find that its connection was closed; the second one connects."""
    with contextlib.suppress(redis.ConnectionError):
        await client.run("x", "PING")
    await client.run("x", "PING")


async def _answers(client: RedisClient) -> bool:
    try:
        return bool(await client.run("x", "PING"))
    except redis.RedisError:
        return False


async def test_a_unix_socket_and_a_database(
    new_node: Callable[..., Any], agents: Any, run_feeds: Any, eventually: Any, tmp_path: Path
) -> None:
    """unix:///PATH?db=3: agent and router meet there, and nowhere else."""
    path = tmp_path / "v.sock"
    node = new_node("--unixsocket", str(path))
    url = f"unix://{path}?db=3"
    (writing,) = await agents(url, ["r0/0"])
    writing.store(5)
    router = run_feeds(redis=url)
    await eventually(lambda: router.held("r0/0") == {5}, 30.0)
    assert node.client.dbsize() == 0
