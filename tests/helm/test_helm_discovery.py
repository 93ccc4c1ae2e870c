"""Engines outside of the chart: what routers may do to find them, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from router.config_file import parse

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]


def of_kind(manifests: Manifests, *kinds: str) -> Manifests:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def router_pod(manifests: Manifests) -> dict[str, Any]:
    (found,) = (m for m in of_kind(manifests, "Deployment") if m["metadata"]["name"].endswith("-router"))
    return found["spec"]["template"]["spec"]


def test_routers_may_list_and_watch_slices_where_services_are(render: Render, value_sets: dict[str, Any]) -> None:
    """One Role for each namespace, nothing cluster-wide, bound to the routers' own account in the release's."""
    manifests = render(value_sets["discovery"])
    roles = of_kind(manifests, "Role")
    assert sorted(role["metadata"]["namespace"] for role in roles) == ["team-b", "warm"]
    for role in roles:
        [rule] = role["rules"]
        assert rule == {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    account = router_pod(manifests)["serviceAccountName"]
    assert account == "wr-warmroute-router"
    assert account in [m["metadata"]["name"] for m in of_kind(manifests, "ServiceAccount")]
    for binding in of_kind(manifests, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "warm"}]
        assert binding["roleRef"]["name"] in [role["metadata"]["name"] for role in roles]
    assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")


def test_an_account_that_exists_gets_the_rights(render: Render, value_sets: dict[str, Any]) -> None:
    """Where the chart may make no account, it binds the one that was named; engines' pods still mount no token."""
    manifests = render(value_sets["discovery_own_account"])
    assert not of_kind(manifests, "ServiceAccount")
    [binding] = of_kind(manifests, "RoleBinding")
    assert binding["subjects"][0]["name"] == "mine" == router_pod(manifests)["serviceAccountName"]
    mounted = {
        m["metadata"]["name"]: m["spec"]["template"]["spec"]["automountServiceAccountToken"]
        for m in of_kind(manifests, "Deployment")
    }
    assert [name for name, has_token in mounted.items() if has_token] == ["wr-warmroute-router"]


@pytest.mark.parametrize("name", ["defaults", "all_off", "external_redis"])
def test_nobody_gets_rights_where_no_service_is_followed(render: Render, value_sets: dict[str, Any], name: str) -> None:
    """DNS and leases need no API: no Role, no account for routers, no token."""
    values = value_sets[name] or {}
    router = {**values.get("router", {}), "discovery": {"dns": [{"name": "engines.other.svc", "port": 8000}]}}
    manifests = render({**values, "router": router})
    assert not of_kind(manifests, "Role", "RoleBinding")
    assert router_pod(manifests)["automountServiceAccountToken"] is False


def test_the_router_takes_what_the_chart_writes(render: Render, value_sets: dict[str, Any]) -> None:
    """The file has the sources, and the network policy lets routers reach them and the API."""
    manifests = render(value_sets["discovery"])
    (file,) = (m["data"]["router.yaml"] for m in of_kind(manifests, "ConfigMap") if "router.yaml" in m.get("data", {}))
    data = {key: value for key, value in yaml.safe_load(file).items() if key in ("listen", "models", "discovery")}
    config = parse({**data, "admin": {"listen": "127.0.0.1:0"}}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert [source.name for source in config.discovery.dns] == ["engines.other.svc"]
    assert [(s.service, s.namespace, s.port) for s in config.discovery.kubernetes] == [
        ("vllm", None, 8000),
        ("vllm", "team-b", "http"),
    ]
    policies = {m["metadata"]["name"]: m for m in of_kind(manifests, "NetworkPolicy")}
    egress = policies["wr-warmroute-router"]["spec"]["egress"]
    assert {"ports": [{"port": 443}, {"port": 6443}]} in egress
    assert {"ports": [{"port": 8001}]} in egress
    team = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "warm"}}}
    assert {"ports": [{"port": 8000}], "to": [team]} in egress
