"""The parts that a switch adds: what they point at is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from router import config_file
from router.picker.plane import problems_of

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]


def of_kind(manifests: Manifests, *kinds: str) -> Manifests:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def only(manifests: Manifests, kind: str, ending: str = "") -> dict[str, Any]:
    (found,) = (m for m in of_kind(manifests, kind) if m["metadata"]["name"].endswith(ending))
    return found


def test_files_that_the_redis_url_names_are_mounted(render: Render, value_sets: dict[str, Any]) -> None:
    """The Secret of `redis.filesSecret` is at /etc/warmroute/redis in routers and agents, and in nobody else."""
    manifests = render(value_sets["external_redis"])
    for deployment in of_kind(manifests, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert {"name": "redis-files", "secret": {"secretName": "redis-files"}} in pod["volumes"]
        for part in pod["containers"]:
            mounted = [mount["mountPath"] for mount in part["volumeMounts"] if mount["name"] == "redis-files"]
            assert mounted == (["/etc/warmroute/redis"] if part["name"] in ("router", "agent") else [])


def test_ways_in_lead_to_the_clients_service(render: Render, value_sets: dict[str, Any]) -> None:
    """Ingress and HTTPRoute name the Service that clients use, at a port that it has, and never the admin's."""
    ingress = render(value_sets["ingress"])
    ports = {port["name"]: port["port"] for port in only(ingress, "Service", "-router")["spec"]["ports"]}
    assert list(ports) == ["http"]
    (rule,) = only(ingress, "Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert rule["host"] == "llm.example.org"
    assert path["backend"]["service"] == {"name": "wr-warmroute-router", "port": {"name": "http"}}
    (rule,) = only(render(value_sets["http_route"]), "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "wr-warmroute-router", "port": ports["http"]}]
    assert rule["timeouts"] == {"request": "0s"}


def test_who_scales_decides_the_count(render: Render, value_sets: dict[str, Any]) -> None:
    """What is scaled exists and names no count of its own, which would fight with its autoscaler at each upgrade."""
    for name in ("autoscaling_hpa", "autoscaling_keda"):
        manifests = render(value_sets[name])
        deployments = {m["metadata"]["name"]: m for m in of_kind(manifests, "Deployment")}
        scalers = of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject")
        targets = [scaler["spec"]["scaleTargetRef"]["name"] for scaler in scalers]
        assert sorted(targets) == ["wr-warmroute-main", "wr-warmroute-router"]
        assert not any("replicas" in deployments[target]["spec"] for target in targets)


def test_keda_asks_the_routers(render: Render, value_sets: dict[str, Any]) -> None:
    """Its first trigger is the admin Service, with the token; the second is Prometheus, about this namespace alone."""
    manifests = render(value_sets["autoscaling_keda"])
    queue, ttft = only(manifests, "ScaledObject")["spec"]["triggers"]
    service = only(manifests, "Service", "-router-admin")
    host = f"{service['metadata']['name']}.warm.svc:{service['spec']['ports'][0]['port']}"
    assert queue["metadata"]["url"] == f"http://{host}/admin/autoscaling/org/Model"
    assert queue["metadata"]["targetValue"] == "0.5"
    token = only(manifests, "TriggerAuthentication")
    assert queue["authenticationRef"]["name"] == token["metadata"]["name"]
    assert token["spec"]["secretTargetRef"] == [{"parameter": "token", "name": "admin", "key": "token"}]
    assert 'namespace="warm", model="org/Model"' in ttft["metadata"]["query"]


def test_engines_of_ranks_publish_where_their_agent_listens(render: Render, value_sets: dict[str, Any]) -> None:
    """Rank r is at port + r on both sockets: the agent is told the first, and the two ranges don't meet."""
    pod = only(render(value_sets["adapters_and_ranks"]), "Deployment", "-main")["spec"]["template"]["spec"]
    engine, agent = (part["args"] for part in pod["containers"])
    assert "--data-parallel-size=4" in engine
    assert "--tensor-parallel-size=2" in engine
    told = next(argument for argument in engine if argument.startswith("--kv-events-config="))
    events = json.loads(told.partition("=")[2])
    assert events["endpoint"] == "tcp://*:5600"
    assert f"--kv-events={events['endpoint'].replace('*', 'localhost')}" in agent
    assert f"--kv-replay={events['replay_endpoint'].replace('*', 'localhost')}" in agent
    first, second = (int(events[key].rpartition(":")[2]) for key in ("endpoint", "replay_endpoint"))
    assert abs(first - second) >= 64, "as many ranks as the schema takes"
    start = engine.index("--lora-modules")
    assert engine[start - 1 : start + 3] == [
        "--enable-lora",
        "--lora-modules",
        "sql=/weights/adapters/sql",
        "law=/weights/adapters/law",
    ]


def test_one_key_is_the_engines_the_agents_and_the_routers(render: Render, value_sets: dict[str, Any]) -> None:
    """`router.upstreamKey` reaches all three, from its Secret."""
    manifests = render(value_sets["tenants_and_keys"])
    engine, agent = only(manifests, "Deployment", "-main")["spec"]["template"]["spec"]["containers"]
    key = {"secretKeyRef": {"name": "engines", "key": "key"}}
    for part, variable in ((engine, "VLLM_API_KEY"), (agent, "WARMROUTE_AGENT_ENGINE_API_KEY")):
        assert {"name": variable, "valueFrom": key} in part["env"]
    volumes = only(manifests, "Deployment", "-router")["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "engines", "items": [{"key": "key", "path": "key"}]} in [v.get("secret") for v in volumes]


def test_monitors_bring_the_token(render: Render, value_sets: dict[str, Any]) -> None:
    """Prometheus needs the admin token for /metrics of the routers; engines and agents have none."""
    manifests = render(value_sets["monitoring"])
    (endpoint,) = only(manifests, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": "admin", "key": "token"}}
    ports = [endpoint["port"] for endpoint in only(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]]
    pod = only(manifests, "Deployment", "-main")["spec"]["template"]["spec"]
    assert ports == [part["ports"][0]["name"] for part in pod["containers"]]


def test_rules_and_dashboards_are_the_projects(render: Render, value_sets: dict[str, Any]) -> None:
    """What the operator and Grafana get is what the project generates and checks, unchanged."""
    manifests = render(value_sets["monitoring"])
    files = Path(__file__).parents[2] / "helm/files"
    rules = yaml.safe_load((files / "alerts.yaml").read_text(encoding="utf-8"))
    assert only(manifests, "PrometheusRule")["spec"] == rules
    found = only(manifests, "ConfigMap", "-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    written = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files.glob("*.json")}
    assert len(written) == 2
    assert {name: json.loads(text) for name, text in found["data"].items()} == written


def test_a_gateway_finds_the_picker_and_its_pool(render: Render, value_sets: dict[str, Any]) -> None:
    """The InferencePool selects the model's engines, at their port, and names the picker's Service and port."""
    manifests = render(value_sets["picker"])
    pool = only(manifests, "InferencePool")
    pod = only(manifests, "Deployment", "-main")["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pool["spec"]["targetPorts"] == [{"number": pod["spec"]["containers"][0]["ports"][0]["containerPort"]}]
    service = only(manifests, "Service", "-picker")
    picker = pool["spec"]["endpointPickerRef"]
    assert picker == {
        "name": service["metadata"]["name"],
        "port": {"number": service["spec"]["ports"][0]["port"]},
        "failureMode": "FailClose",
    }
    (rule,) = only(manifests, "HTTPRoute")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["group"], backend["kind"], backend["name"]) == (
        "inference.networking.k8s.io",
        "InferencePool",
        pool["metadata"]["name"],
    )


def test_the_picker_takes_its_configuration(render: Render, value_sets: dict[str, Any]) -> None:
    """`warmroute picker` serves by the file in its ConfigMap, at the ports that its pod declares."""
    manifests = render(value_sets["picker"])
    text = only(manifests, "ConfigMap", "-picker")["data"]["picker.yaml"]
    secrets = {"WARMROUTE_REDIS__URL": "redis://u:p@redis:6379/0", "WARMROUTE_REGISTRATION__SECRET": "x" * 48}
    loaded = config_file.parse(yaml.safe_load(text), secrets)
    assert problems_of(loaded) == []
    (part,) = only(manifests, "Deployment", "-picker")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in part["ports"]}
    assert loaded.picker.listen.endswith(f":{ports['grpc']}")
    assert str(loaded.admin.listen).endswith(f":{ports['admin']}")
