"""What the chart renders, line by line: a change of it shows in review.

UPDATE_SNAPSHOTS=1 python -m pytest tests/helm/test_helm_snapshots.py    writes them anew
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SNAPSHOTS = Path(__file__).parent / "snapshots"
NAMES = ("defaults", "all_on", "autoscaling_keda", "tenants_and_keys")


def told(manifests: list[dict[str, Any]]) -> str:
    """The manifests as text; what is made at random, and follows from it, is left out."""
    for manifest in manifests:
        if manifest["kind"] == "Secret":
            manifest["data"] = dict.fromkeys(manifest["data"], "made at random")
        annotations = manifest.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {})
        if "checksum/secret" in annotations:
            annotations["checksum/secret"] = "follows from it"
    manifests.sort(key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"]))
    return yaml.safe_dump_all(manifests, sort_keys=False, width=118)


@pytest.mark.parametrize("name", NAMES)
def test_rendered_is_as_reviewed(
    render: Callable[..., list[dict[str, Any]]], value_sets: dict[str, Any], name: str
) -> None:
    """Equal to the file in snapshots/."""
    file = SNAPSHOTS / f"{name}.yaml"
    text = told(render(value_sets[name]))
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
