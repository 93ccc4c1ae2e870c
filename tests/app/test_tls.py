"""TLS on both sides of a router that runs, with certificates made for the test."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A CA that this module trusts."""
    return trustme.CA()


def written(folder: Path, name: str, cert: trustme.LeafCert) -> dict[str, str]:
    """Write a certificate and its key; return them as a configuration names them."""
    files = {"cert": folder / f"{name}.pem", "key": folder / f"{name}.key"}
    files["cert"].write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    files["key"].write_bytes(cert.private_key_pem.bytes())
    return {key: str(path) for key, path in files.items()}


def ca_file(folder: Path, ca: trustme.CA) -> str:
    """Write a CA's certificate; return the file's name."""
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    return str(folder / "ca.pem")


def context_for(ca: trustme.CA, cert: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """What a client of this CA speaks with."""
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if cert is not None:
        cert.configure_cert(context)
    return context


def status_of(url: str, context: ssl.SSLContext, path: str = "/healthz") -> int:
    """Ask for one path by TLS."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    with contextlib.closing(http.client.HTTPSConnection(host, int(port), context=context, timeout=20)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def serial_of(url: str, context: ssl.SSLContext) -> str:
    """Return the serial number of the certificate that is shown."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return str(secured.getpeercert()["serialNumber"])  # type: ignore[index]


@contextlib.contextmanager
def engine(context: ssl.SSLContext | None) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """An engine behind TLS: its port, and the certificates that its clients showed."""
    shown: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({"data": [{"id": "tiny", "object": "model", "root": "tiny"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            shown.append(self.connection.getpeercert() or {})  # type: ignore[attr-defined]
            self._answer({"host": self.headers["host"]})

        def _answer(self, data: object) -> None:
            body = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def finish_request(self, request: Any, client_address: Any) -> None:
            with contextlib.suppress(OSError):
                secured = request if context is None else context.wrap_socket(request, server_side=True)
                self.RequestHandlerClass(secured, client_address, self)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1], shown
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def server_context(authority: trustme.CA, cert: trustme.LeafCert, *, asks: bool = False) -> ssl.SSLContext:
    """What an engine speaks with; `asks`: for a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(context)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


BODY = {"model": "tiny", "prompt": "hello"}


def test_clients_and_admin_are_served_by_tls(router_process: Any, authority: trustme.CA, tmp_path: Path) -> None:
    """The ready line says https; plain HTTP is no way in, and neither is an old version of TLS."""
    tls = {**written(tmp_path, "own", authority.issue_cert("127.0.0.1")), "min_version": "1.3"}
    router = router_process(tls=tls, admin={"listen": "127.0.0.1:0", "tls": tls})
    context = context_for(authority)
    assert router.ready["http"].startswith("https://")
    assert status_of(router.ready["http"], context, "/v1/models") == 200
    assert status_of(router.ready["admin"], context) == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        status_of(router.ready["http"], ssl.create_default_context())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        status_of(router.ready["http"], context)
    plain = http.client.HTTPConnection(router.ready["http"].removeprefix("https://"), timeout=20)
    plain.request("GET", "/v1/models")
    with pytest.raises((OSError, http.client.HTTPException)):
        plain.getresponse()
    plain.close()
    assert router.stop() == 0


def test_admin_on_a_shared_port_is_served_by_its_tls(
    router_process: Any, authority: trustme.CA, tmp_path: Path
) -> None:
    """The connection is handed over with its encryption."""
    router = router_process(tls=written(tmp_path, "own", authority.issue_cert("127.0.0.1")))
    assert status_of(router.ready["admin"], context_for(authority)) == 200
    assert status_of(router.ready["admin"], context_for(authority), "/admin/config") == 200


def test_clients_without_a_certificate_are_refused_where_one_is_asked_for(
    router_process: Any, authority: trustme.CA, tmp_path: Path
) -> None:
    """Mutual TLS: one of the named CA, and of no other."""
    tls = {**written(tmp_path, "own", authority.issue_cert("127.0.0.1")), "client_ca": ca_file(tmp_path, authority)}
    router = router_process(tls=tls)
    url = router.ready["http"]
    assert status_of(url, context_for(authority, authority.issue_cert("client.example"))) == 200
    for stranger in (None, trustme.CA().issue_cert("client.example")):
        with pytest.raises((OSError, http.client.HTTPException)):
            status_of(url, context_for(authority, stranger))


async def test_a_renewed_certificate_is_shown_without_a_restart(
    router_process: Any, eventually: Eventually, authority: trustme.CA, tmp_path: Path
) -> None:
    """Open connections go on; a key that does not belong to it changes nothing and is reported."""
    tls = written(tmp_path, "own", authority.issue_cert("127.0.0.1"))
    router = router_process(tls=tls)
    url, context = router.ready["http"], context_for(authority)
    before = serial_of(url, context)
    host, _, port = url.removeprefix("https://").rpartition(":")
    kept = http.client.HTTPSConnection(host, int(port), context=context, timeout=20)
    kept.request("GET", "/v1/models")
    assert kept.getresponse().read()
    written(tmp_path, "own", authority.issue_cert("127.0.0.1"))
    await eventually(lambda: serial_of(url, context) != before)
    after = serial_of(url, context)
    kept.request("GET", "/v1/models")
    assert kept.getresponse().status == 200
    kept.close()
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(tls["key"])
    await eventually(lambda: "the configuration is not taken over" in router.errors.read_text())
    assert "tls.key: the key is not the certificate's" in router.errors.read_text()
    assert serial_of(url, context) == after


async def test_engines_are_reached_by_tls(
    router_process: Any, eventually: Eventually, authority: trustme.CA, tmp_path: Path
) -> None:
    """With the CA's file, the name in their certificate, and a certificate of the router's own where they ask."""
    own = written(tmp_path, "own", authority.issue_cert("router.example"))
    with engine(server_context(authority, authority.issue_cert("engine.example"), asks=True)) as (port, shown):
        upstream = {"tls": {**own, "ca": ca_file(tmp_path, authority), "server_name": "engine.example"}}
        router = router_process(replicas=[{"url": f"https://127.0.0.1:{port}"}], upstream=upstream)
        await eventually(lambda: router.admin.send("GET", "/readyz")[0] == 200)
        for _ in range(2):
            status, _, answer = router.client.send("POST", "/v1/completions", BODY)
            assert (status, answer) == (200, {"host": f"127.0.0.1:{port}"})
        assert dict(shown[0]["subjectAltName"]) == {"DNS": "router.example"}
        assert router.metric('warmroute_probes_total{result="passed"}') >= 1
        assert router.stop() == 0


async def test_an_engine_with_a_strange_certificate_gets_nothing(
    router_process: Any, eventually: Eventually, authority: trustme.CA, tmp_path: Path
) -> None:
    """Neither a request nor a good probe: of another CA, or of another name."""
    stranger = trustme.CA().issue_cert("127.0.0.1")
    other_name = authority.issue_cert("other.example")
    upstream = {"tls": {"ca": ca_file(tmp_path, authority)}}
    with (
        engine(server_context(authority, stranger)) as (one, shown),
        engine(server_context(authority, other_name)) as (two, shown_too),
    ):
        replicas = [{"url": f"https://127.0.0.1:{port}"} for port in (one, two)]
        router = router_process(replicas=replicas, upstream=upstream)
        status, _, answer = router.client.send("POST", "/v1/completions", BODY)
        assert answer["error"]["code"] in ("connect_failed", "no_replica_available")
        assert status in (502, 503)
        await eventually(lambda: router.metric('warmroute_replicas{state="down"}') == 2)
        assert not shown
        assert not shown_too
