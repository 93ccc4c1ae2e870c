"""The values: mistakes are refused with a message that helps, and the table in the chart's README is complete."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.tools import chart_schema

CHART = Path(__file__).parents[2] / "helm"
MODEL = {"name": "tiny", "source": "tiny/model"}
POOL = {"name": "main", "model": "tiny"}

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"kvCache": {"blocksize": 32}}, "at '/kvCache': additional properties 'blocksize' not allowed"),
    "block size": ({"kvCache": {"blockSize": 0}}, "at '/kvCache/blockSize': minimum: got 0, want 1"),
    "algorithm": ({"kvCache": {"hashAlgorithm": "md5"}}, "must be one of 'sha256', 'sha256_cbor'"),
    "seed missing": ({"kvCache": {"hashAlgorithm": "xxhash"}}, "kvCache.hashSeed: xxhash has a random root"),
    "no models": ({"models": []}, "at '/models': minItems: got 0, want 1"),
    "model twice": ({"models": [MODEL, MODEL], "pools": []}, 'models: "tiny" is there twice'),
    "model without source": ({"models": [{"name": "tiny"}]}, "at '/models/0': missing property 'source'"),
    "two volume sources": (
        {"models": [{**MODEL, "tokenizer": {"volume": {"configMap": {}, "secret": {}}}}]},
        "at '/models/0/tokenizer/volume': maxProperties: got 2, want 1",
    ),
    "pool of no model": ({"models": [MODEL], "pools": [{**POOL, "model": "x"}]}, 'the model "x" is not one of models'),
    "pool twice": ({"models": [MODEL], "pools": [POOL, POOL]}, 'pools: "main" is there twice'),
    "pool's name": (
        {"models": [MODEL], "pools": [{**POOL, "name": "Main"}]},
        "at '/pools/0/name': 'Main' does not match",
    ),
    "pool named as a part": ({"models": [MODEL], "pools": [{**POOL, "name": "router"}]}, "at '/pools/0/name'"),
    "owned flag": (
        {"models": [MODEL], "pools": [{**POOL, "args": ["--block_size=32"]}]},
        "pools.main.args: --block-size is set by the chart: use models[] or kvCache",
    ),
    "no redis": ({"valkey": {"enabled": False}}, "redis.urlSecret: name the Secret that holds the Redis URL"),
    "half a secret": ({"registration": {"secret": {"name": "s"}}}, "properties 'key' required, if 'name' exists"),
    "drain time": ({"grace": {"drainSeconds": 0}}, "at '/grace/drainSeconds': minimum: got 0, want 1"),
    "drain in the config": (
        {"router": {"config": {"timeouts": {"drain_s": 5}}}},
        "at '/router/config/timeouts': additional properties 'drain_s' not allowed",
    ),
    "listen in the config": ({"router": {"config": {"listen": "x"}}}, "additional properties 'listen' not allowed"),
    "digest": ({"router": {"image": {"digest": "sha256:abc"}}}, "at '/router/image/digest'"),
    "account": ({"serviceAccount": {"create": False}}, "serviceAccount.name: name the account that exists"),
    "weight's name": (
        {"router": {"config": {"placement": {"weights": {"prise_base": 1}}}}},
        "at '/router/config/placement/weights': additional properties 'prise_base' not allowed",
    ),
    "weight's range": (
        {"router": {"config": {"placement": {"weights": {"price_max": -1}}}}},
        "at '/router/config/placement/weights/price_max': minimum: got -1, want 0",
    ),
    "ranks without their share": (
        {"models": [MODEL], "pools": [{**POOL, "gpus": 4, "dataParallel": 3}]},
        "pools.main: 4 GPUs can't be shared by 3 data parallel ranks",
    ),
    "scaling's bounds": (
        {"models": [MODEL], "pools": [{**POOL, "autoscaling": {"kind": "keda", "minReplicas": 3, "maxReplicas": 2}}]},
        "pools.main.autoscaling: minReplicas (3) is over maxReplicas (2)",
    ),
    "scaling on TTFT without Prometheus": (
        {"models": [MODEL], "pools": [{**POOL, "autoscaling": {"kind": "keda", "maxReplicas": 2, "ttftSeconds": 1}}]},
        "pools.main.autoscaling.ttftSeconds needs monitoring.prometheusUrl",
    ),
    "kind of scaling": (
        {"models": [MODEL], "pools": [{**POOL, "autoscaling": {"kind": "vpa", "maxReplicas": 2}}]},
        "at '/pools/0/autoscaling/kind': value must be one of 'keda', 'hpa'",
    ),
    "ingress without a host": ({"ingress": {"enabled": True}}, "ingress.hosts: name at least one host"),
    "route without a gateway": ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: name at least one gateway"),
    "admin token without a key": ({"router": {"adminToken": {"name": "x"}}}, "'key' required, if 'name' exists"),
    "picker with tenants": (
        {"picker": {"enabled": True}, "router": {"tenants": {"file": {"name": "t", "key": "k"}}}},
        "picker.enabled: a picker can't check tenants' keys",
    ),
    "kind of number": ({"router": {"replicas": "two"}}, "at '/router/replicas': got string, want integer"),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_mistakes_are_refused(run_helm: Callable[..., Any], mistake: str) -> None:
    """A wrong value ends `helm template` with its path and what would be right."""
    values, message = MISTAKES[mistake]
    done = run_helm("template", "wr", values=values)
    assert done.returncode != 0
    assert message in done.stderr


def leaves(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Path to default of every value; images and resources are one value each."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, dict) and value and key not in ("image", "resources"):
            found |= leaves(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            found |= leaves(value[0], f"{name}[].")
        else:
            found[name] = value
    return found


def table() -> dict[str, tuple[str, str]]:
    """Value to default and meaning, from the README's table."""
    text = (CHART / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-zA-Z.\[\], ]+)` \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    found = {}
    for names, default, meaning in rows:
        first, *more = names.split(", ")
        found[first] = (default, meaning)
        found |= {first.rpartition(".")[0] + name: (default, meaning) for name in more}
    return found


def is_told(name: str, rows: dict[str, tuple[str, str]]) -> bool:
    """Whether the value has a row, or is below one that a row lists as one of its `{a, b}`."""
    parent, _, key = name.rpartition(".")
    listed = re.findall(r"\w+", "".join(re.findall(r"`\{(.*?)\}`", rows.get(parent, ("", ""))[1])))
    return name in rows or key in listed or ("." in parent and is_told(parent, rows))


def test_readme_names_every_value() -> None:
    """Every value of values.yaml is in the table, with the same default where the table quotes one."""
    values = leaves(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))
    rows = table()
    assert [name for name in values if not is_told(name, rows)] == []
    for name, default in values.items():
        if name in rows and rows[name][0].startswith("`") and name.rpartition(".")[2] not in ("image", "resources"):
            assert yaml.safe_load(rows[name][0].strip("`")) == default, name


def test_readme_names_nothing_else() -> None:
    """Every value in the table is one that the schema takes."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    for name in table():
        node = schema
        for key in name.replace("[]", ".[]").split("."):
            node = node["items"] if key == "[]" else node["properties"][key]


def test_router_config_is_checked_as_the_router_checks_it() -> None:
    """The schema of `router.config` is made from the router's own types (`make docs` writes it)."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"]["router"]["properties"]["config"] == chart_schema.config_schema()


def test_notes_tell_what_to_try(run_helm: Callable[..., Any]) -> None:
    """After an installation one reads how to try it, and of each model without a tokenizer what that means."""
    models = [MODEL, {"name": "known", "source": "k", "tokenizer": {"volume": {"configMap": {"name": "t"}}}}]
    values = {"models": models, "pools": [POOL], "router": {"service": {"port": 8000}}}
    done = run_helm("install", "wr", "--namespace", "warm", "--dry-run=client", values=values)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("\nNOTES:\n")[2]
    assert "kubectl --namespace warm port-forward service/wr-warmroute-router 8080:8000\n" in notes
    assert """--data '{"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}'""" in notes
    assert "the model tiny has no tokenizer volume" in notes
    assert "the model known has no tokenizer volume" not in notes
