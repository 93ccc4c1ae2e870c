"""One server: a Redis or Valkey at an address, over redis-py's asyncio client.

Every failure comes back to the caller, soon and without a retry of its own: what retries knows what is still worth it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, NoScriptError, ReadOnlyError
from redis.exceptions import ConnectionError as RedisConnectionError

from router.kv.log_lines import conceal
from router.kv.redis_url import Address, Login, Tls

CLOSE_S = 0.5
MAX_CONNECTIONS = 2_048
"""More than lanes may be: in a Cluster each is waited for on a connection of its own."""
MAX_SECRET_BYTES = 65_536

Command = Sequence[Any]


class Script:
    """A Lua script, by its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class _Credentials(CredentialProvider):
    """User and password; a file is read at each connection, since it may have changed."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._login.password or ""
        if self._login.password_file is not None:
            try:
                with Path(self._login.password_file).open("rb") as file:
                    password = file.read(MAX_SECRET_BYTES).decode().strip()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or type(error).__name__
                raise AuthenticationError(f"password_file can't be read: {reason}") from None
        conceal(password)
        return (self._login.username, password) if self._login.username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


class Server:
    """Commands on one server.

    Args:
        at: Address, or the path of a Unix socket.
        timeout_s: Of a command that does not block, and of the handshake.
    """

    def __init__(
        self,
        at: Address | str,
        login: Login,
        tls: Tls | None,
        timeout_s: float,
        *,
        db: int = 0,
        client_name: str | None = None,
        protocol: int = 2,
    ) -> None:
        self.at = at
        self._timeout_s = timeout_s
        options: dict[str, Any] = {
            "db": db,
            "client_name": client_name,
            "protocol": protocol,
            "socket_connect_timeout": timeout_s,
            # See `_limited`. With it redis-py sends by `asyncio.wait_for`, which swallows cancellations (3.11).
            "socket_timeout": None,
            "max_connections": MAX_CONNECTIONS,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        if login.username or login.password or login.password_file:
            options["credential_provider"] = _Credentials(login)
        if isinstance(at, str):
            options |= {"path": at, "connection_class": UnixDomainSocketConnection}
        else:
            options |= {"host": at[0], "port": at[1], "socket_keepalive": True}
            if tls is not None:
                options |= {
                    "connection_class": SSLConnection,
                    "ssl_cert_reqs": tls.check,
                    "ssl_check_hostname": tls.check_host and tls.check != "none",
                    "ssl_ca_certs": tls.ca_file,
                    "ssl_certfile": tls.cert_file,
                    "ssl_keyfile": tls.key_file,
                }
        self._client: Any = Redis(connection_pool=ConnectionPool(**options))

    async def run(self, command: Command, *, asking: bool = False, block_s: float = 0.0) -> Any:
        """Return the answer to one command.

        Args:
            asking: The command follows a redirection by ASK.
            block_s: How long the command itself may wait for news.

        Raises:
            RedisError, OSError, TimeoutError: It has none.
        """
        if asking:
            answers = await self._limited(self._pipeline([("ASKING",), command]), block_s)
            if isinstance(answers[1], Exception):
                raise answers[1]
            return answers[1]
        return await self._limited(self._client.execute_command(*command), block_s)

    async def each(self, commands: Sequence[Command]) -> list[Any]:
        """Return an answer for each command, sent together: what went wrong with one stands in its place."""
        return list(await self._limited(self._pipeline(commands), 0.0))

    async def script(self, script: Script, keys: Sequence[str], arguments: Command, *, asking: bool = False) -> Any:
        """Run a script, by its digest where the server knows it. A failover makes it unknown again."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        try:
            return await self.run(command, asking=asking)
        except NoScriptError:
            await self.run(("SCRIPT", "LOAD", script.text))
            return await self.run(command, asking=asking)

    async def hello(self) -> dict[str, Any]:
        """Return what the server says of itself: `mode`, `role` and more."""
        answer = await self.run(("HELLO",))
        pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=False)
        return {_text(name): _text(value) for name, value in pairs}

    async def close(self) -> None:
        """Close all connections, those in use included."""
        with contextlib.suppress(Exception):  # a broken connection is closed all the same
            async with asyncio.timeout(CLOSE_S):
                await self._client.aclose()
                await self._client.connection_pool.disconnect()

    def _pipeline(self, commands: Sequence[Command]) -> Awaitable[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: Awaitable[Any] = pipeline.execute(raise_on_error=False)
        return answers

    async def _limited(self, asked: Awaitable[Any], block_s: float) -> Any:
        # One limit for connecting, handshake, sending and reading: each of redis-py's own is for a part.
        try:
            async with asyncio.timeout(block_s + self._timeout_s):
                return await _unless_cancelled(asked)
        except RuntimeError as error:
            # uvloop's word for writing to a connection that was reset meanwhile; redis-py passes it on.
            raise RedisConnectionError(str(error)) from error
        except ReadOnlyError:
            # The connection leads to what is a replica now. Its address may lead to the primary by now.
            await self.close()
            raise


async def _unless_cancelled(asked: Awaitable[Any]) -> Any:
    """Return the answer, unless the asking task was cancelled meanwhile: redis-py (8.1) swallows a cancellation."""
    answer = await asked
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    return answer


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
