"""`make test-ops`: Prometheus' own promtool on the alert rules and on every expression of the dashboards."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from router.tools.alerts import ALERTS, FILE, rules, unknown_metrics
from router.tools.grafana import expressions

pytestmark = pytest.mark.ops
HERE = Path(__file__).parent
RULES = HERE.parents[1] / "helm" / "files" / FILE
UNIT_TESTS = sorted(HERE.glob("*.yaml"))


def promtool(*arguments: str | Path) -> str:
    tool = shutil.which("promtool")
    assert tool, "no promtool on PATH: install Debian's package prometheus"
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_valid() -> None:
    """As the chart ships them: all of them are found."""
    count = len(ALERTS) + len(yaml.safe_load(rules())["groups"][0]["rules"])
    assert f"{count} rules found" in promtool("check", "rules", RULES)


@pytest.mark.parametrize("name", [path.name for path in UNIT_TESTS])
def test_alerts_fire_where_they_must(name: str) -> None:
    """Prometheus' own unit tests of rules."""
    assert "SUCCESS" in promtool("test", "rules", HERE / name)


def test_every_alert_has_a_unit_test() -> None:
    """Each fires in some test."""
    fired = set()
    for path in UNIT_TESTS:
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            fired |= {case["alertname"] for case in test.get("alert_rule_test", ()) if case["exp_alerts"]}
    assert fired == {f"Warmroute{alert.name}" for alert in ALERTS}


def test_every_expression_of_the_dashboards_is_valid(tmp_path: Path) -> None:
    """Grafana's variables filled in, promtool parses each; and it names metrics of the table alone."""
    filled = [
        expr.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
        for expr in expressions()
    ]
    assert len(filled) > 40
    assert set().union(*map(unknown_metrics, filled)) == set()
    recorded = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(filled)]
    path = tmp_path / "panels.yaml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}), encoding="utf-8")
    assert f"{len(filled)} rules found" in promtool("check", "rules", path)
