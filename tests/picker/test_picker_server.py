"""The picker's own port: health checks, TLS, and configurations that it can't serve by."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from router import config_file
from router.picker.plane import problems_of

LEAST: dict[str, Any] = {
    "models": [{"name": "tiny"}],
    "admin": {"listen": "127.0.0.1:0"},
    "replicas": [{"url": "http://e:1"}],
}


SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
"""HealthCheckResponse: field 1."""
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"


def question(service: str) -> bytes:
    """HealthCheckRequest: field 1."""
    return b"\x0a%c%b" % (len(service), service.encode()) if service else b""


def health(channel: grpc.Channel, service: str = "") -> bytes:
    told: bytes = channel.unary_unary("/grpc.health.v1.Health/Check")(question(service), timeout=10)
    return told


def test_health(new_picker: Callable[..., Any]) -> None:
    """Gateways and kubelets ask by gRPC's own health service, here with gRPC's own client."""
    picker = new_picker(timeouts={"drain_delay_s": 0.5, "drain_s": 5})
    with grpc.insecure_channel(f"127.0.0.1:{picker.port}") as channel:
        assert health(channel) == health(channel, EXT_PROC) == SERVING
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            health(channel, "other")
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=10)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert next(watch(question("other"), timeout=20)) == SERVICE_UNKNOWN
        watched = watch(question(EXT_PROC), timeout=20)
        assert next(watched) == SERVING
        picker.child.signal(signal.SIGTERM)
        assert list(watched) == [NOT_SERVING]
    assert picker.child.wait(20) == 0


def test_tls(new_picker: Callable[..., Any], tmp_path: Path) -> None:
    """With a certificate the port speaks TLS."""
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    picker = new_picker(picker={"listen": "127.0.0.1:0", "cert": str(tmp_path / "cert.pem")})
    assert picker.ready["grpc"].startswith("grpcs://")
    trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with grpc.secure_channel(f"localhost:{picker.port}", trusted) as channel:
        assert health(channel) == SERVING


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"admin": {}}, "admin.listen"),
        ({"workers": 2}, "workers"),
        ({"tenants": [{"name": "a", "keys": ["0" * 64], "isolated": False}]}, "tenants"),
        ({"models": [{"name": "tiny", "aliases": ["other"]}]}, "models"),
        ({"picker": {"cert": "/nonexistent/cert.pem"}}, "picker.cert"),
    ],
)
def test_what_a_picker_cannot_do(change: dict[str, Any], path: str) -> None:
    """A configuration that only a router can serve by is a mistake, with what would be right."""
    (problem,) = problems_of(config_file.parse({**LEAST, **change}, {}))
    assert problem.path == path
    assert problem.remedy
    assert problems_of(config_file.parse(LEAST, {})) == []


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    """They end the command with 2 before anything starts."""
    file = tmp_path / "picker.yaml"
    file.write_text(json.dumps({**LEAST, "workers": 2, "admin": {}}))
    command = [sys.executable, "-m", "router.cli", "picker", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "warmroute picker: admin.listen: is missing" in done.stderr
    assert "warmroute picker: workers: a picker is one process" in done.stderr
