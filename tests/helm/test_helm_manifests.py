"""What the chart renders: every set of values, held against what Kubernetes and our own configuration ask."""

from __future__ import annotations

import argparse
import base64
import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from replica.agent import command, settings
from router import config, config_file

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]
API_KEY = settings.API_KEY_VARIABLE
WORKLOADS = ("Deployment", "StatefulSet")


def of_kind(manifests: Manifests, *kinds: str) -> Manifests:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def labels_of(manifest: dict[str, Any]) -> dict[str, str]:
    return dict(manifest["metadata"]["labels"])


def named(manifests: Manifests, kind: str, name: str) -> dict[str, Any]:
    return next(m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name)


def pods(manifests: Manifests) -> Manifests:
    """The pods that are made, as {metadata, spec}: of workloads, and those of hooks."""
    made = [workload["spec"]["template"] for workload in of_kind(manifests, *WORKLOADS)]
    return made + of_kind(manifests, "Pod")


def container(workload: dict[str, Any], name: str) -> dict[str, Any]:
    return next(part for part in workload["spec"]["template"]["spec"]["containers"] if part["name"] == name)


def flags(part: dict[str, Any]) -> dict[str, str]:
    pairs = (argument.partition("=") for argument in part["args"] if argument.startswith("--"))
    return {name: value for name, _, value in pairs}


def environment(part: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in part["env"]}


def engines(manifests: Manifests) -> Manifests:
    return [w for w in of_kind(manifests, "Deployment") if "warmroute/pool" in w["metadata"]["labels"]]


def router_config(manifests: Manifests) -> dict[str, Any]:
    (file,) = (m for m in of_kind(manifests, "ConfigMap") if m["metadata"]["name"].endswith("-router"))
    return dict(yaml.safe_load(file["data"]["router.yaml"]))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs certificates here."""
    return trustme.CA()


def test_lint_finds_nothing(run_helm: Callable[..., Any], value_set: dict[str, Any]) -> None:
    """`helm lint --strict` passes for every set of values."""
    done = run_helm("lint", "--strict", values=value_set)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_unique_and_valid(render: Render, value_set: dict[str, Any]) -> None:
    """No two objects share kind, namespace and name, and every name is one that Kubernetes takes."""
    manifests = render(value_set)
    names = [(m["kind"], m["metadata"].get("namespace", "warm"), m["metadata"]["name"]) for m in manifests]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", name) for *_, name in names)


def test_pods_pass_the_restricted_standard(render: Render, value_set: dict[str, Any]) -> None:
    """Every pod meets the restricted Pod Security Standard, and beyond it has a read-only root and no token."""
    manifests = render(value_set)
    for made in pods(manifests):
        pod = made["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        is_router = made["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "router"
        has_token = is_router and bool(of_kind(manifests, "Role"))  # a router that follows Services
        assert pod["automountServiceAccountToken"] is has_token
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        allowed = {
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "persistentVolumeClaim",
            "projected",
            "secret",
        }
        assert all(volume.keys() - {"name"} <= allowed for volume in pod.get("volumes", []))
        for part in pod["containers"] + pod.get("initContainers", []):
            context = part["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert "privileged" not in context
            assert all("hostPort" not in port for port in part.get("ports", []))
            assert part["resources"]["requests"], "a pod without requests is evicted first"


def test_selectors_find_the_pods(render: Render, value_set: dict[str, Any]) -> None:
    """Every workload, Service, budget and network policy selects pods that the chart makes; ports are real."""
    manifests = render(value_set)
    made = pods(manifests)
    has_pool = bool(engines(manifests))
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "ServiceMonitor":
            found = [
                m
                for m in of_kind(manifests, "Service")
                if labels_of(m).items() >= spec["selector"]["matchLabels"].items()
            ]
            assert [service["metadata"]["name"] for service in found] == ["wr-warmroute-router-admin"]
            continue
        selector = spec.get("podSelector", spec.get("selector"))
        if selector is None or (not has_pool and manifest["metadata"]["name"].endswith("-replica")):
            continue
        labels = selector.get("matchLabels", selector)
        found = [pod for pod in made if labels.items() <= pod["metadata"]["labels"].items()]
        assert found, manifest["metadata"]["name"]
        ports = {port["name"] for pod in found for part in pod["spec"]["containers"] for port in part.get("ports", [])}
        if manifest["kind"] == "Service":
            assert all(port["targetPort"] in ports for port in spec["ports"])


def test_mounts_have_volumes(render: Render, value_set: dict[str, Any]) -> None:
    """Every mounted volume is defined once, and every defined one is mounted."""
    for made in pods(render(value_set)):
        pod = made["spec"]
        volumes = [volume["name"] for volume in pod.get("volumes", [])]
        mounted = {mount["name"] for part in pod["containers"] for mount in part.get("volumeMounts", [])}
        assert sorted(mounted) == sorted(volumes)


def mounted_files(workload: dict[str, Any], root: Path, authority: trustme.CA) -> None:
    """Lay out below `root` what the pod's Secrets bring as files, each with content of its kind."""
    pod = workload["spec"]["template"]["spec"]
    certificate = authority.issue_cert("router")
    contents = {
        "tls.crt": certificate.cert_chain_pems[0].bytes(),
        "tls.key": certificate.private_key_pem.bytes(),
        "ca.crt": authority.cert_pem.bytes(),
        "tenants.yaml": b"- {name: a, keys: ['" + b"0" * 64 + b"']}\n",
    }
    secrets = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    for mount in container(workload, "router")["volumeMounts"]:
        for item in secrets.get(mount["name"], {}).get("items", []):
            file = root / mount["mountPath"].lstrip("/") / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(contents.get(item["path"], b"x" * 48))


def test_router_config_loads(render: Render, value_set: dict[str, Any], tmp_path: Path, authority: trustme.CA) -> None:
    """The router accepts the file in the ConfigMap in its pod: environment, mounted Secrets, and the ports declared."""
    manifests = render(value_set)
    (router,) = (w for w in of_kind(manifests, "Deployment") if w["metadata"]["name"].endswith("-router"))
    part = container(router, "router")
    secrets = {"WARMROUTE_REDIS__URL": "rediss://u:p@redis:6380/0", "WARMROUTE_REGISTRATION__SECRET": "x" * 48}
    variables = {name for name in environment(part) if name.startswith(config_file.PREFIX)}
    assert variables == secrets.keys()
    mounted_files(router, tmp_path, authority)
    text = json.dumps(router_config(manifests)).replace("/etc/warmroute/secrets", f"{tmp_path}/etc/warmroute/secrets")
    loaded = config_file.parse(json.loads(text), {**secrets, "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    ports = {port["name"]: port["containerPort"] for port in part["ports"]}
    assert config.split_address(loaded.listen)[1] == ports["http"] == 8080
    assert loaded.admin.listen is not None
    assert config.split_address(loaded.admin.listen)[1] == ports["admin"] == 9090


def test_agent_accepts_its_arguments(render: Render, value_set: dict[str, Any]) -> None:
    """The agent takes the arguments and the environment of its container, the pod's facts put in."""
    for workload in engines(render(value_set)):
        part = container(workload, "agent")
        pod = {"$(POD_IP)": "fd00::7" if "[$(POD_IP)]" in str(part["args"]) else "10.0.0.7", "$(POD_NAME)": "main-abc"}
        name, *arguments = part["args"]
        assert name == "agent"
        for variable, value in pod.items():
            arguments = [argument.replace(variable, value) for argument in arguments]
        secrets = {settings.REDIS_VARIABLE: "redis://:p@redis:6379/0", settings.SECRET_VARIABLE: "x" * 48}
        assert secrets.keys() == {name for name in environment(part) if name.startswith("WARMROUTE_")} - {API_KEY}
        parser = argparse.ArgumentParser()
        command.configure(parser)
        loaded = settings.from_args(parser.parse_args(arguments), secrets)
        assert loaded.replica_id == "main-abc"
        assert loaded.advertise == f"http://{'[fd00::7]' if ':' in pod['$(POD_IP)'] else '10.0.0.7'}:8000"
        assert loaded.listen_port == next(port["containerPort"] for port in part["ports"])


def test_drain_fits_into_the_grace_period(render: Render, value_set: dict[str, Any]) -> None:
    """A router's drain and an engine's preStop end before Kubernetes kills the pod."""
    manifests = render(value_set)
    timeouts = router_config(manifests)["timeouts"]
    needed = timeouts["drain_delay_s"] + timeouts["drain_s"]
    for workload in of_kind(manifests, "Deployment"):
        assert workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == needed + 15
    for workload in engines(manifests):
        (script,) = container(workload, "engine")["lifecycle"]["preStop"]["exec"]["command"][2:]
        compile(script, "preStop", "exec")
        assert f"time.sleep({timeouts['drain_delay_s']})" in script
        assert f"time.monotonic() + {timeouts['drain_s']}" in script


def test_flags_agree(render: Render, value_sets: dict[str, Any]) -> None:
    """Block size, algorithm, seed, endpoints, namespace and lanes are one for engine, agent and router."""
    manifests = render(value_sets["all_on"])
    (pool,) = engines(manifests)
    engine, agent, router = container(pool, "engine"), container(pool, "agent"), router_config(manifests)
    given = flags(engine)
    events = json.loads(given["--kv-events-config"])
    assert given["--block-size"] == "32"
    assert [model["block_size"] for model in router["models"]] == [32]
    assert given["--prefix-caching-hash-algo"] == "xxhash_cbor"
    assert environment(engine)["PYTHONHASHSEED"] == flags(agent)["--hash-seed"] == "7"
    assert "--enable-prompt-tokens-details" in given
    assert events["enable_kv_cache_events"] is True
    assert flags(agent)["--kv-events"] == events["endpoint"]
    assert flags(agent)["--kv-replay"] == events["replay_endpoint"]
    assert flags(agent)["--namespace"] == router["redis"]["namespace"]
    assert int(flags(agent)["--lanes"]) == router["redis"]["lanes"]
    assert flags(agent)["--advertise"].endswith(f":{given['--port']}")


def test_events_stay_in_the_pod(render: Render, value_set: dict[str, Any]) -> None:
    """KV events carry token ids: engines publish them on sockets in a folder that only their pod's containers mount."""
    for workload in engines(render(value_set)):
        events = json.loads(flags(container(workload, "engine"))["--kv-events-config"])
        for key in ("endpoint", "replay_endpoint"):
            # Ranks need TCP; no policy opens those ports (test_who_reaches_whom).
            is_local = events[key].startswith("ipc:///run/kv-events/")
            assert is_local is ("--data-parallel-size" not in flags(container(workload, "engine")))
        for name in ("engine", "agent"):
            mounts = {m["mountPath"]: m["name"] for m in container(workload, name)["volumeMounts"]}
            assert mounts["/run/kv-events"] == "kv-events"


def test_models_meet_their_pools(render: Render, value_sets: dict[str, Any]) -> None:
    """Each pool serves its model under the clients' name, with its GPUs and weights; routers mount its tokenizer."""
    manifests = render(value_sets["two_models_and_pools"])
    small, large = (
        container(named(manifests, "Deployment", f"wr-warmroute-{n}"), "engine") for n in ("small", "large")
    )
    assert flags(small)["--served-model-name"] == "tiny"
    assert flags(small)["--model"] == "tiny/model"
    assert flags(small)["--max-model-len"] == "8192"
    assert small["args"][-1] == "--enforce-eager"
    assert "--tensor-parallel-size" not in flags(small)
    assert "nvidia.com/gpu" not in small["resources"].get("limits", {})
    assert flags(large)["--model"] == "/weights/large"
    assert flags(large)["--tensor-parallel-size"] == "4"
    assert large["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert router_config(manifests)["models"] == [
        {"name": "tiny", "block_size": 16, "tokenizer": "/etc/warmroute/tokenizers/0/tiny"},
        {"name": "org/Large", "block_size": 16},
    ]
    mounts = container(named(manifests, "Deployment", "wr-warmroute-router"), "router")["volumeMounts"]
    assert {"name": "tokenizer-0", "mountPath": "/etc/warmroute/tokenizers/0", "readOnly": True} in mounts


def test_agents_see_the_weights_whose_tokenizer_they_publish(render: Render, value_sets: dict[str, Any]) -> None:
    """At the engine's own path, which is what its model list tells; without a volume there is none to see."""
    manifests = render(value_sets["two_models_and_pools"])
    for pool, mounted in (("small", False), ("large", True)):
        agent = container(named(manifests, "Deployment", f"wr-warmroute-{pool}"), "agent")
        assert ({"name": "weights", "mountPath": "/weights", "readOnly": True} in agent["volumeMounts"]) is mounted
        assert "--no-publish-tokenizer" not in agent["args"]


@pytest.mark.parametrize(
    "args",
    [
        ["--chat-template=/x.jinja"],
        ["--tokenizer", "other"],
        ["--chat_template", "x"],
        ["--default-chat-template-kwargs", "{}", "--chat-template=x"],
        ["--default_chat_template_kwargs.a", "1"],
    ],
)
def test_an_engine_with_another_template_has_none_published(
    render: Render, value_sets: dict[str, Any], args: list[str]
) -> None:
    """What lies in its weights would be wrong."""
    values = copy.deepcopy(value_sets["two_models_and_pools"])
    for pool in values["pools"]:
        pool["args"] = args
    manifests = render(values)
    assert "--no-publish-tokenizer" in container(named(manifests, "Deployment", "wr-warmroute-large"), "agent")["args"]


@pytest.mark.parametrize(
    "given", [["--default-chat-template-kwargs", '{"a": 1}'], ['--default_chat_template_kwargs={"a": 1}']]
)
def test_an_engines_variables_are_its_agents_too(render: Render, value_sets: dict[str, Any], given: list[str]) -> None:
    """Routers render with what is published: the engine's own variables belong to it."""
    values = copy.deepcopy(value_sets["two_models_and_pools"])
    for pool in values["pools"]:
        pool["args"] = ["--max-num-seqs=8", *given, "--seed=1"]
    agent = container(named(render(values), "Deployment", "wr-warmroute-large"), "agent")
    assert '--default-chat-template-kwargs={"a": 1}' in agent["args"]
    assert "--no-publish-tokenizer" not in agent["args"]


def test_secrets_come_by_environment(render: Render, value_set: dict[str, Any]) -> None:
    """Neither the Valkey password nor the signing key is in an argument or in the ConfigMap."""
    manifests = render(value_set)
    text = json.dumps([m for m in manifests if m["kind"] != "Secret"])
    for secret in of_kind(manifests, "Secret"):
        for key in ("valkey-password", "registration"):
            if key in secret["data"]:
                value = base64.b64decode(secret["data"][key]).decode()
                assert len(value) >= 32
                assert value not in text
                assert secret["data"][key] not in text


def test_valkey_takes_the_password_that_clients_get(render: Render) -> None:
    """The generated valkey.conf requires the password that routers and agents are given."""
    (secret,) = of_kind(render(), "Secret")
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert f"requirepass {data['valkey-password']}\n" in data["valkey.conf"]


def test_external_redis_has_no_valkey(render: Render, value_sets: dict[str, Any]) -> None:
    """With Secrets of one's own nothing is generated, no Valkey runs, and the policies open the Redis' port."""
    manifests = render(value_sets["external_redis"])
    assert not of_kind(manifests, "Secret", "StatefulSet")
    part = container(named(manifests, "Deployment", "wr-warmroute-main"), "agent")
    assert environment(part)["WARMROUTE_AGENT_REDIS"] == {"secretKeyRef": {"name": "redis", "key": "url"}}
    assert environment(part)["WARMROUTE_AGENT_REGISTRATION_SECRET"] == {
        "secretKeyRef": {"name": "signing", "key": "key"}
    }
    for policy in of_kind(manifests, "NetworkPolicy"):
        if policy["metadata"]["name"].endswith("-test"):
            continue
        assert {"ports": [{"port": 6380}, {"port": 26379}]} in policy["spec"]["egress"]


@pytest.mark.parametrize(("name", "callers"), [("replica", {"router"}), ("valkey", {"router", "replica"})])
def test_who_reaches_whom(render: Render, name: str, callers: set[str]) -> None:
    """Engines are reached from routers alone, Valkey from routers and agents alone."""
    policy = named(render(), "NetworkPolicy", f"wr-warmroute-{name}")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = policy["ingress"]
    assert {p["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for p in rule["from"]} == callers


def test_admin_is_closed_until_someone_is_named(render: Render, value_sets: dict[str, Any]) -> None:
    """The admin port is open to nobody by default, and to the named peers only when there are some."""
    closed = named(render(), "NetworkPolicy", "wr-warmroute-router")["spec"]["ingress"]
    assert [rule["ports"] for rule in closed] == [[{"port": 8080}], [{"port": 8080}]]
    opened = named(render(value_sets["all_on"]), "NetworkPolicy", "lb-router")["spec"]["ingress"]
    peers = value_sets["all_on"]["networkPolicy"]["monitoring"]
    assert [rule["from"] for rule in opened if {"port": 9090} in rule["ports"]] == [peers]


def test_switches_turn_parts_off(render: Render, value_sets: dict[str, Any]) -> None:
    """Budgets, policies and the account are left out when their switch is off."""
    manifests = render(value_sets["all_off"])
    assert not of_kind(manifests, "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount")
    router = named(manifests, "Deployment", "wr-warmroute-router")
    assert router["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"


def test_only_what_is_read_once_rolls_the_routers(render: Render) -> None:
    """Running routers take over a change of weights; another block size, which they read once, is another template."""

    def checksum(values: dict[str, Any]) -> str:
        router = named(render(values), "Deployment", "wr-warmroute-router")
        return str(router["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    def with_config(config: dict[str, Any]) -> dict[str, Any]:
        return {"router": {"config": config}}

    assert checksum({}) == checksum(with_config({"placement": {"weights": {"price_max": 5}}}))
    assert checksum({}) != checksum({"kvCache": {"blockSize": 32}})
    assert checksum({}) != checksum(with_config({"workers": 2}))
