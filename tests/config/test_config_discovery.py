"""`discovery`: mistakes are all reported at once, and what it needs here is checked before the router starts."""

from __future__ import annotations

import importlib.util

import pytest

from router.config_discovery import split_nameserver
from router.config_file import parse
from router.errors import ConfigurationError

BASE = {"listen": "127.0.0.1:0", "models": [{"name": "tiny"}]}


def problems(discovery: dict, **environ: str) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parse({**BASE, "discovery": discovery}, environ)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_discovery_alone_is_somewhere_to_send_requests() -> None:
    """No list and no Redis are needed beside it; defaults are the documented ones."""
    config = parse({**BASE, "discovery": {"dns": [{"name": "engines.ns.svc", "port": 8000}]}}, {})
    [source] = config.discovery.dns
    assert (source.every_s, source.gone_after, source.nameserver, source.scheme) == (5.0, 3, None, "http")
    assert "" in problems({})


def test_every_mistake_is_named_at_once() -> None:
    """Each with its path."""
    found = problems(
        {
            "dns": [{"name": "10.0.0.1", "port": 8000}, {"name": "a..b", "port": 0, "nameserver": "dns.example:53"}],
            "kubernetes": [{"service": "Not_A_Service", "port": "HTTP!"}, {"service": "a", "port": 70000}],
        }
    )
    assert found.keys() >= {
        "discovery.dns.0.name",
        "discovery.dns.1.name",
        "discovery.dns.1.port",
        "discovery.dns.1.nameserver",
        "discovery.kubernetes.0.service",
    }
    assert {path.partition(".port")[0] for path in found if ".port" in path} >= {
        "discovery.kubernetes.0",
        "discovery.kubernetes.1",
    }
    assert "list it in `replicas`" in found["discovery.dns.0.name"]


def test_a_source_is_named_once() -> None:
    """Two that are the same would withdraw each other's replicas."""
    source = {"name": "engines.ns.svc", "port": 8000}
    assert "named twice" in problems({"dns": [source, source]})["discovery.dns"]


def test_kubernetes_needs_a_cluster_a_kubeconfig_and_its_package(monkeypatch, tmp_path) -> None:
    """What is missing is said, with what to do."""
    services = [{"service": "vllm", "port": "8000"}]
    assert "not a pod" in problems({"kubernetes": services})["discovery.kubernetes"]
    missing = {"kubernetes": services, "kubeconfig": str(tmp_path / "none")}
    assert "no file" in problems(missing)["discovery.kubeconfig"]
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    config = parse({**BASE, "discovery": {"kubernetes": services}}, pod)
    assert config.discovery.kubernetes[0].port == 8000
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "not installed" in problems({"kubernetes": services}, **pod)["discovery.kubernetes"]


def test_a_name_server_is_an_address() -> None:
    """It can't be looked up itself."""
    assert split_nameserver("10.0.0.10") == ("10.0.0.10", 53)
    assert split_nameserver("10.0.0.10:8600") == ("10.0.0.10", 8600)
    assert split_nameserver("[fd00::A]:5353") == ("fd00::a", 5353)
    for wrong in ("dns.example", "10.0.0.10:0", "10.0.0.10:99999", "fd00::a", "[10.0.0.1"):
        with pytest.raises(ValueError, match="ADDRESS:PORT"):
            split_nameserver(wrong)
