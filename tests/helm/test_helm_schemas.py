"""Every manifest against Kubernetes' own schemas (oldest, middle, newest version), custom resources against theirs."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]
Refused = Callable[[Manifests], list[str]]

CRDS = Path(__file__).parent / "crds"
VERSIONS = ("1.27", "1.32", "1.37")
# The Inference Extension publishes no package with its schemas: test_helm_parts.py looks at what is made for it.
UNPUBLISHED = "inference.networking.k8s.io"
CUSTOM = ("gateway.networking.k8s.io", "keda.sh", "monitoring.coreos.com")


def is_custom(manifest: dict[str, Any]) -> bool:
    return str(manifest["apiVersion"]).partition("/")[0] in CUSTOM


@functools.cache
def validate(manifest: str, version: str) -> None:
    """Raise where Kubernetes refuses it; sets of values have most of their manifests in common."""
    kubernetes_validate.validate(json.loads(manifest), version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(render: Render, value_set: dict[str, Any], version: str) -> None:
    """Kubernetes takes every object, with no field that it does not know."""
    manifests = [
        manifest
        for manifest in render(value_set)
        if not is_custom(manifest) and not manifest["apiVersion"].startswith(UNPUBLISHED)
    ]
    assert len(manifests) >= 5
    for manifest in manifests:
        validate(json.dumps(manifest), version)


def test_a_wrong_manifest_is_found(render: Render) -> None:
    """The check above finds a misspelt field, and a value of another type."""
    deployment = next(manifest for manifest in render() if manifest["kind"] == "Deployment")
    for change in ({"replica": 1}, {"replicas": "two"}):
        wrong = copy.deepcopy(deployment)
        wrong["spec"] |= change
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.fixture(scope="session")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Refused:
    """`refused(manifests)`: what the custom resources' own schemas say against them, a line each."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs Node.js and npm, which have the schemas of the custom resources")
    folder = tmp_path_factory.mktemp("crds")
    for file in CRDS.iterdir():
        shutil.copy(file, folder)
    command = ["npm", "ci", "--silent", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr

    def run(manifests: Manifests) -> list[str]:
        done = subprocess.run(
            ["node", "validate.mjs"],
            cwd=folder,
            input=json.dumps([manifest for manifest in manifests if is_custom(manifest)]),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_custom_resources_are_valid(render: Render, value_sets: dict[str, Any], refused: Refused) -> None:
    """Gateway API, KEDA and the Prometheus operator take what is made for them, under every set of values."""
    manifests = [manifest for values in value_sets.values() for manifest in render(values) if is_custom(manifest)]
    kinds = {manifest["kind"] for manifest in manifests}
    assert kinds >= {
        "HTTPRoute",
        "ScaledObject",
        "TriggerAuthentication",
        "ServiceMonitor",
        "PodMonitor",
        "PrometheusRule",
    }
    assert refused(manifests) == []


def test_a_wrong_custom_resource_is_found(render: Render, value_sets: dict[str, Any], refused: Refused) -> None:
    """The check above finds a value of another type, in each of the projects' resources."""
    wrong = []
    for name, kind, change in (
        ("http_route", "HTTPRoute", {"hostnames": "llm.example.org"}),
        ("autoscaling_keda", "ScaledObject", {"maxReplicaCount": "many"}),
        ("monitoring", "ServiceMonitor", {"endpoints": {}}),
    ):
        manifest = next(manifest for manifest in render(value_sets[name]) if manifest["kind"] == kind)
        manifest["spec"] |= change
        wrong.append(manifest)
    assert len(refused(wrong)) == 3
