"""What holds of everything that serves, under every set of values: spread, probes, budgets, classes, rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]
COMPONENT = "app.kubernetes.io/component"
SERVING = {"router": "router", "replica": "engine", "picker": "picker"}
"""The container of each component that takes requests."""


def of_kind(manifests: Manifests, *kinds: str) -> Manifests:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def serving(manifests: Manifests) -> Manifests:
    return [made for made in of_kind(manifests, "Deployment") if made["metadata"]["labels"][COMPONENT] in SERVING]


def labels_of(workload: dict[str, Any]) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def test_pods_are_spread(render: Render, value_set: dict[str, Any]) -> None:
    """Over hosts and zones, each among its own: the constraint's selector finds the pods that it stands in."""
    for workload in serving(render(value_set)):
        constraints = workload["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert "kubernetes.io/hostname" in {constraint["topologyKey"] for constraint in constraints}
        for constraint in constraints:
            assert constraint["labelSelector"]["matchLabels"].items() <= labels_of(workload).items()
            assert constraint["whenUnsatisfiable"] == "ScheduleAnyway", "a fleet on one node must start, too"


def test_containers_that_serve_are_probed(render: Render, value_set: dict[str, Any]) -> None:
    """Start, life and readiness, at ports that the container has; who never got ready gets no traffic."""
    for workload in serving(render(value_set)):
        name = SERVING[workload["metadata"]["labels"][COMPONENT]]
        (part,) = (part for part in workload["spec"]["template"]["spec"]["containers"] if part["name"] == name)
        ports = {port["name"] for port in part["ports"]}
        probes = [part[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert {probe["httpGet"]["port"] for probe in probes} <= ports
        paths = [probe["httpGet"]["path"] for probe in probes]
        assert paths == (["/health"] * 3 if name == "engine" else ["/healthz", "/healthz", "/readyz"])


def test_evictions_have_a_budget(render: Render, value_set: dict[str, Any]) -> None:
    """One for each workload that serves, unless they are switched off."""
    manifests = render(value_set)
    budgets = of_kind(manifests, "PodDisruptionBudget")
    if not value_set.get("podDisruptionBudget", {}).get("enabled", True):
        assert budgets == []
        return
    for workload in serving(manifests):
        selectors = [budget["spec"]["selector"]["matchLabels"].items() for budget in budgets]
        assert sum(selector <= labels_of(workload).items() for selector in selectors) == 1, workload["metadata"]["name"]
    assert all(budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for budget in budgets)


def test_an_update_takes_nobody_away_first(render: Render, value_set: dict[str, Any]) -> None:
    """A router or picker is ready before another leaves; of a pool one goes at a time: GPUs are not to spare."""
    for workload in serving(render(value_set)):
        update = workload["spec"]["strategy"]["rollingUpdate"]
        is_pool = workload["metadata"]["labels"][COMPONENT] == "replica"
        assert (update["maxUnavailable"], update["maxSurge"]) == ((1, 0) if is_pool else (0, 1))


def test_nobody_has_rights_over_the_cluster(render: Render, value_set: dict[str, Any]) -> None:
    """No cluster-wide role or binding; roles in namespaces read EndpointSlices and nothing else."""
    manifests = render(value_set)
    assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")
    for role in of_kind(manifests, "Role"):
        (rule,) = role["rules"]
        assert (rule["resources"], sorted(rule["verbs"])) == (["endpointslices"], ["list", "watch"])
    accounts = of_kind(manifests, "ServiceAccount")
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


def test_who_goes_before_whom(render: Render) -> None:
    """Priority classes reach routers, a pool and Valkey; without one a pod names none."""
    given = {
        "router": {"priorityClassName": "serving"},
        "pools": [{"name": "main", "model": "qwen3-0.6b", "priorityClassName": "gpu"}],
        "valkey": {"priorityClassName": "state"},
    }
    named = of_kind(render(given), "Deployment", "StatefulSet")
    assert sorted(made["spec"]["template"]["spec"]["priorityClassName"] for made in named) == [
        "gpu", "serving", "state",
    ]  # fmt: skip
    plain = of_kind(render(), "Deployment", "StatefulSet")
    assert not any("priorityClassName" in made["spec"]["template"]["spec"] for made in plain)


def test_helm_test_is_a_hook_that_asks_the_routers(render: Render) -> None:
    """It is no part of the release, is cleared away, and names the Service and every model of a pool that runs."""
    (pod,) = of_kind(render(), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (part,) = pod["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in part["env"]}
    services = {made["metadata"]["name"]: made["spec"] for made in of_kind(render(), "Service")}
    host, _, port = variables["WARMROUTE_URL"].removeprefix("http://").partition("/")[0].partition(":")
    assert int(port) in {port["port"] for port in services[host]["ports"]}
    assert variables["WARMROUTE_MODELS"] == '["qwen3-0.6b"]'
    compile(part["command"][2], "helm test", "exec")
