"""The configuration is read again while the router runs: by signal, by change of a file, and never half."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any

Eventually = Callable[..., Awaitable[Any]]


async def test_a_changed_file_is_noticed_and_applied(router_process: Any, eventually: Eventually) -> None:
    """Weights, policy, paths and limits change without a restart; the digest and the counter tell."""
    router = router_process()
    before = router.config()["reload"]
    router.write({**router.least, "placement": {"policy": "random"}, "paths": ["/v1/models"]})
    await eventually(lambda: router.config()["placement"]["policy"] == "random")
    after = router.config()["reload"]
    assert (before["result"], after["result"]) == ("started", "applied")
    assert after["digest"] != before["digest"]
    assert router.metric('warmroute_config_reloads_total{result="applied"}') == 1
    assert router.metric(f'warmroute_config_info{{digest="{after["digest"]}"}}') == 1
    assert router.metric("warmroute_config_loaded_timestamp_seconds") >= before["loaded_unix_s"]
    assert router.client.send("POST", "/v1/completions", {})[0] == 404
    assert router.client.send("GET", "/v1/models")[0] == 200


async def test_a_configuration_that_is_wrong_changes_nothing(router_process: Any, eventually: Eventually) -> None:
    """The last valid one stays, everything wrong is listed, and a good file ends it."""
    router = router_process()
    router.write({**router.least, "placement": {"policy": "best"}, "limits": {"connections": 0}, "nonsense": 1})
    await eventually(lambda: router.config()["reload"]["result"] == "failed")
    config = router.config()
    assert config["placement"]["policy"] == "cost"
    paths = sorted(problem.split(":")[0] for problem in config["reload"]["problems"])
    assert paths == ["limits.connections", "nonsense", "placement.policy"]
    assert router.metric('warmroute_config_reloads_total{result="failed"}') == 1
    router.write("listen: [")
    await eventually(lambda: "not YAML" in str(router.config()["reload"]["problems"]))
    router.write({**router.least, "placement": {"policy": "round-robin"}})
    await eventually(lambda: router.config()["placement"]["policy"] == "round-robin")
    assert router.config()["reload"]["problems"] == []


async def test_a_signal_has_it_read_at_once(router_process: Any, eventually: Eventually) -> None:
    """SIGHUP, also when nothing has changed; and it ends no router."""
    router = router_process()
    router.process.send_signal(signal.SIGHUP)
    await eventually(lambda: router.metric('warmroute_config_reloads_total{result="unchanged"}') == 1)
    assert router.config()["reload"]["result"] == "unchanged"
    assert router.stop() == 0


async def test_a_key_that_needs_a_restart_is_named_and_the_rest_applied(
    router_process: Any, eventually: Eventually
) -> None:
    """The address stays; the weight that was changed with it holds."""
    router = router_process()
    weights = {"weights": {"running_tokens": 77}}
    router.write({**router.least, "listen": "127.0.0.1:1", "placement": weights})
    await eventually(lambda: router.config()["placement"]["weights"]["running_tokens"] == 77)
    config = router.config()
    assert config["reload"]["needs_restart"] == ["listen"]
    assert config["listen"] == "127.0.0.1:0"
    assert router.metric("warmroute_config_needs_restart") == 1


async def test_a_swapped_symbolic_link_is_a_change(router_process: Any, eventually: Eventually, tmp_path: Any) -> None:
    """As Kubernetes updates a ConfigMap: the file's name leads through a link that is replaced."""
    router = router_process()
    for name, policy in (("old", "cost"), ("new", "least-loaded")):
        (tmp_path / name).mkdir()
        router.write({**router.least, "placement": {"policy": policy}})
        router.file.rename(tmp_path / name / "router.yaml")
    (tmp_path / "data").symlink_to(tmp_path / "old")
    router.file.symlink_to(tmp_path / "data" / "router.yaml")
    (tmp_path / "swap").symlink_to(tmp_path / "new")
    (tmp_path / "swap").rename(tmp_path / "data")
    await eventually(lambda: router.config()["placement"]["policy"] == "least-loaded")


async def test_a_rotated_secret_counts_without_a_restart(
    router_process: Any, eventually: Eventually, tmp_path: Any
) -> None:
    """The token's file is watched like the configuration, and no answer tells the token."""
    secret = tmp_path / "token"
    secret.write_text("first-token")
    router = router_process(admin={"token_file": str(secret)})
    assert router.config(authorization="Bearer first-token")["admin"]["token"] == "***"
    secret.write_text("second-token")

    def status(token: str) -> int:
        return router.admin.send("GET", "/admin/config", authorization=f"Bearer {token}")[0]

    await eventually(lambda: status("second-token") == 200)
    assert status("first-token") == 401


async def test_replicas_come_and_go_with_the_file(router_process: Any, eventually: Eventually) -> None:
    """Those in both keep their names and what is known of them."""
    router = router_process(replicas=[{"url": "http://127.0.0.1:1", "id": "a"}, {"url": "http://127.0.0.1:2"}])

    def names() -> list[str]:
        return [item["replica"] for item in router.admin.send("GET", "/admin/replicas")[2]["replicas"]]

    await eventually(lambda: names() == ["a", "r1"])
    router.write(
        {**router.least, "replicas": [{"url": "http://127.0.0.1:1", "id": "a"}, {"url": "http://127.0.0.1:3"}]}
    )
    await eventually(lambda: "127.0.0.1:3" in str(router.admin.send("GET", "/admin/replicas")[2]))
    assert names() == ["a", "r1"]


async def test_models_come_and_go_with_the_file(router_process: Any, eventually: Eventually, golden: Any) -> None:
    """Their tokenizers are loaded before the change applies."""
    router = router_process()
    models = [{"name": "other", "tokenizer": str(golden / "tokenizer")}]
    router.write({**router.least, "models": models})
    texts = lambda: router.admin.send("GET", "/admin/replicas")[2]["texts"]  # noqa: E731
    await eventually(lambda: [text["model"] for text in texts()] == ["other"])
    assert texts()[0]["source"] == "folder"
    router.write({**router.least, "models": [{"name": "third", "tokenizer": "/nowhere"}]})
    await eventually(lambda: router.config()["reload"]["result"] == "failed")
    assert [text["model"] for text in texts()] == ["other"]
