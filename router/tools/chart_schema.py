"""The part of helm/values.schema.json that is the router's own configuration, from the configuration's types.

`router.config` of the chart's values goes into the router's file: a mistake there is to fail `helm install`, not a pod.
What the chart sets itself (addresses, models, Redis, secrets, times of leaving) is left out.

    python -m router.tools.chart_schema helm/values.schema.json    write it anew
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from router.config import RouterConfig

CHART_SETS = (
    "listen",
    "tls",
    "models",
    "discovery",
    "redis",
    "tenants",
    "tenants_file",
    "record",
    "picker",
    "isolation.secret",
    "isolation.secret_file",
    "upstream.api_key",
    "upstream.api_key_file",
    "registration.secret",
    "registration.secret_file",
    "admin.listen",
    "admin.tls",
    "admin.token",
    "admin.token_file",
    "timeouts.drain_delay_s",
    "timeouts.drain_s",
)
"""Keys of the router's configuration that come from other values of the chart, or have no place in a pod."""

_LEFT_OUT = ("title", "default")


def discovery_schema() -> dict[str, Any]:
    """Return the JSON schema of `router.discovery`: as the router has it, but for a kubeconfig, which no pod needs."""
    schema: dict[str, Any] = _whole()["properties"]["discovery"]
    del schema["properties"]["kubeconfig"]
    schema["description"] = "engines without an agent: the router's `discovery`, see docs/discovery.md"
    return schema


def _whole() -> dict[str, Any]:
    whole = RouterConfig.model_json_schema()
    schema: dict[str, Any] = _resolved({key: value for key, value in whole.items() if key != "$defs"}, whole["$defs"])
    return schema


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of `router.config`, without references."""
    schema = _whole()
    schema.pop("required")  # the chart brings the models
    for path in CHART_SETS:
        *sections, key = path.split(".")
        place = schema
        for section in sections:
            place = place["properties"][section]
        del place["properties"][key]
    schema["description"] = "parts of the router's configuration, see docs/configuration.md"
    return schema


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    # Below `properties` a key is a name of ours, and may be called `default`.
    return {
        key: {name: _resolved(item, definitions) for name, item in value.items()}
        if key == "properties"
        else _resolved(value, definitions)
        for key, value in schema.items()
        if key not in _LEFT_OUT
    }


def write(path: Path) -> None:
    """Put it into the chart's schema at `path`."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    schema["properties"]["router"]["properties"]["config"] = config_schema()
    schema["properties"]["router"]["properties"]["discovery"] = discovery_schema()
    path.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
