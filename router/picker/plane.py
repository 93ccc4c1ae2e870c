"""The data plane of `warmroute picker`: the gateway has the connections, this answers where each request goes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from router.config import RouterConfig
from router.config_picker import PickerConfig
from router.errors import ConfigurationError, Problem
from router.picker.service import PickerService
from router.proxy.data_plane import DataPlane

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # `limits.body_bytes` says what is too much, with a proper answer
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


class PickerPlane(DataPlane):
    """See the module. Reading, placing and the queue are the data plane's own."""

    name = "picker"
    scheme = "grpc"
    _server: grpc.aio.Server | None = None
    _service: PickerService | None = None

    async def start(
        self, sockets: Sequence[socket.socket] | None = None, tls: ssl.SSLContext | None = None
    ) -> list[str]:
        """Listen for gateways; return the bound address.

        Raises:
            ConfigurationError: The address or the certificate is of no use.
        """
        config = self._config
        picker = config.picker
        self._service = PickerService(self.forwarder, config)
        self._health = HealthServicer()
        server = self._server = grpc.aio.server(options=_OPTIONS)
        add_ExternalProcessorServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            if picker.cert is None:
                port = server.add_insecure_port(picker.listen)
            else:
                port = server.add_secure_port(picker.listen, _credentials(picker))
        except RuntimeError as error:
            problem = Problem("picker.listen", f"can't listen on {picker.listen}", "choose a free one")
            raise ConfigurationError([problem]) from error
        await server.start()
        await self._tell_health(health_pb2.HealthCheckResponse.SERVING)
        host = picker.listen.rpartition(":")[0]
        return [f"grpc{'' if picker.cert is None else 's'}://{host}:{port}"]

    def configure(self, config: RouterConfig) -> None:
        """See `DataPlane`."""
        super().configure(config)
        if self._service is not None:
            self._service.configure(config)

    def announce_drain(self) -> None:
        """Have gateways see by health checks that this one leaves; requests are served on."""
        super().announce_drain()
        self._telling = asyncio.ensure_future(self._tell_health(health_pb2.HealthCheckResponse.NOT_SERVING))

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, and let those that run end for up to `timeout_s`."""
        self.announce_drain()
        if self._server is not None:
            await self._server.stop(timeout_s)
        await self.close()

    async def close(self) -> None:
        """See `DataPlane`."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        await super().close()

    async def _tell_health(self, status: int) -> None:
        for service in ("", "envoy.service.ext_proc.v3.ExternalProcessor"):
            await self._health.set(service, status)


def _credentials(picker: PickerConfig) -> grpc.ServerCredentials:
    assert picker.cert is not None  # noqa: S101 - for the type alone: the caller looked
    certificate, key = picker.cert.read_bytes(), (picker.key or picker.cert).read_bytes()
    return grpc.ssl_server_credentials([(key, certificate)])


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
