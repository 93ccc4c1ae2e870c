"""The data plane of `warmroute picker`: the gateway has the connections, this answers where each request goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Sequence

from router.config import RouterConfig
from router.errors import ConfigurationError, Problem
from router.picker.calls import Health, Methods
from router.picker.http2 import Connection, OpenConnections
from router.picker.service import PickerService
from router.proxy.data_plane import DataPlane
from router.proxy.listening import Listening, bind, url_of

_SERVICE = b"envoy.service.ext_proc.v3.ExternalProcessor"
_MESSAGE_SLACK_BYTES = 2**20
"""What a message may hold beside a body: heads and metadata."""


class PickerPlane(DataPlane):
    """See the module. Reading, placing and the queue are the data plane's own."""

    name = "picker"
    scheme = "grpc"
    _service: PickerService | None = None
    _methods: Methods | None = None
    _health: Health | None = None
    _open: OpenConnections | None = None

    async def start(
        self, sockets: Sequence[socket.socket] | None = None, tls: ssl.SSLContext | None = None
    ) -> list[str]:
        """Listen for gateways; return the bound address.

        Raises:
            ConfigurationError: The address or the certificate is of no use.
        """
        config = self._config
        picker = config.picker
        service = self._service = PickerService(self.forwarder, config)
        self._health = Health(frozenset({b"", _SERVICE}))
        self._methods = Methods(
            {b"/" + _SERVICE + b"/Process": service.process, **self._health.methods},
            config.limits.body_bytes + _MESSAGE_SLACK_BYTES,
        )
        accept, most = self._methods.accept, config.limits.connections
        connections = self._open = OpenConnections()
        try:
            secure = None if picker.cert is None else _tls(str(picker.cert), str(picker.key or picker.cert))
        except (OSError, ssl.SSLError) as error:
            problem = Problem("picker.cert", f"can't be used: {error}", "name a certificate and its key, as PEM")
            raise ConfigurationError([problem]) from error
        try:
            bound = bind(picker.listen)
        except OSError as error:
            problem = Problem("picker.listen", f"can't listen on {picker.listen}", "choose a free one")
            raise ConfigurationError([problem]) from error
        self.listening = Listening(self._loop, lambda: Connection(accept, connections, most), secure)
        await self.listening.accept_from(bound)
        return [
            f"grpc{'' if secure is None else 's'}://{url_of(each, secure=False).partition('://')[2]}" for each in bound
        ]

    def configure(self, config: RouterConfig) -> None:
        """See `DataPlane`."""
        super().configure(config)
        if self._service is not None and self._methods is not None:
            self._service.configure(config)
            self._methods.longest_bytes = config.limits.body_bytes + _MESSAGE_SLACK_BYTES

    def announce_drain(self) -> None:
        """Have gateways see by health checks that this one leaves; requests are served on."""
        super().announce_drain()
        if self._health is not None:
            self._health.leave()

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, and let those that run end for up to `timeout_s`."""
        self.announce_drain()
        if self.listening is not None:
            self.listening.close()
        if self._health is not None:
            self._health.end()
        if self._open is not None:
            for connection in list(self._open.all):
                connection.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._open.emptied.wait(), timeout_s)
        await self.close()

    async def close(self) -> None:
        """See `DataPlane`."""
        if self._open is not None:
            for connection in list(self._open.all):
                connection.kill()
            await self._open.emptied.wait()
        await super().close()


def _tls(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])
    return context


def problems_of(config: RouterConfig) -> list[Problem]:
    """Return what of a configuration can't be when a gateway carries the traffic."""
    found = []
    if config.admin.listen is None:
        remedy = "set `admin.listen`, such as 0.0.0.0:9090: the picker has no other port for health and metrics"
        found.append(Problem("admin.listen", "is missing", remedy))
    if config.workers != 1:
        found.append(Problem("workers", "a picker is one process", "run more pickers, or leave it out"))
    if config.tenants is not None:
        remedy = "leave it out; the gateway knows who its clients are"
        found.append(Problem("tenants", "a picker can't check keys or set salts", remedy))
    if config.splits or any(model.aliases for model in config.models):
        remedy = "leave `aliases` and `splits` out; the gateway rewrites model names"
        found.append(Problem("models", "a picker can't rename models in bodies", remedy))
    picker = config.picker
    for name in ("cert", "key"):
        file = getattr(picker, name)
        if file is not None and not os.access(file, os.R_OK):
            found.append(Problem(f"picker.{name}", f"can't read {file}", "name a PEM file that the picker may read"))
    return found
