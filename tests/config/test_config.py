"""Configuration: every mistake at once, with its path; environment over file; secrets from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.config import RouterConfig
from router.config_file import load, parse, warnings_of
from router.errors import ConfigurationError, Problem

LEAST: dict[str, Any] = {
    "listen": "127.0.0.1:8080",
    "models": [{"name": "tiny", "tokenizer": "tiny"}],
    "replicas": [{"url": "http://10.0.0.1:8000"}],
}


def parsed(environ: dict[str, str] | None = None, **changes: Any) -> RouterConfig:
    """The least configuration with changes."""
    return parse({**LEAST, **changes}, environ or {})


def problems(environ: dict[str, str] | None = None, **changes: Any) -> list[str]:
    """What is said to be wrong."""
    with pytest.raises(ConfigurationError) as caught:
        parsed(environ, **changes)
    return [str(problem) for problem in caught.value.problems]


def test_the_least_configuration_is_enough() -> None:
    """As the README promises."""
    config = parsed()
    assert config.placement.policy == "cost"
    assert config.replicas[0].url == "http://10.0.0.1:8000"


def test_all_mistakes_are_reported_at_once_with_their_paths() -> None:
    """One run shows everything."""
    found = problems(
        listen="8080",
        replicas=[{"url": "10.0.0.1:8000"}, {"url": "http://10.0.0.2:99999"}],
        placement={"policy": "warmest", "weights": {"running_tokens": -1}},
        limit={},
    )
    paths = [line.partition(":")[0] for line in found]
    assert paths == [
        "listen", "replicas.0.url", "replicas.1.url", "placement.policy", "placement.weights.running_tokens", "limit",
    ]  # fmt: skip
    assert "'cost'" in found[3]


@pytest.mark.parametrize("weight", [-1, "much", float("nan"), float("inf")])
def test_a_weight_that_is_no_number_from_zero_up_is_refused(weight: object) -> None:
    """Negative or non-numeric weights never reach the rule (RTE-04)."""
    [problem] = problems(placement={"weights": {"running_tokens": weight}})
    assert problem.startswith("placement.weights.running_tokens: ")


def test_the_environment_lies_over_the_file() -> None:
    """Two underscores go down a level; values are YAML."""
    config = parsed(
        {
            "WARMROUTE_PLACEMENT__WEIGHTS__RUNNING_TOKENS": "7",
            "WARMROUTE_REDIS": "redis://10.0.0.9:6379/0",
            "OTHER": "x",
        }
    )
    assert config.placement.weights.running_tokens == 7
    assert config.redis is not None
    assert config.redis.url == "redis://10.0.0.9:6379/0"


def test_a_mistake_in_the_environment_names_its_variable() -> None:
    """So that it is looked for in the right place."""
    assert problems({"WARMROUTE_LISTEN__PORT": "1"})[0].startswith("WARMROUTE_LISTEN__PORT: ")


def test_secrets_come_from_files(tmp_path: Path) -> None:
    """The token's file is read, without its line end."""
    (tmp_path / "token").write_text("a-long-token\n")
    assert parsed(admin={"token_file": str(tmp_path / "token")}).admin.token == "a-long-token"


def test_a_missing_secret_file_is_a_problem_at_its_path(tmp_path: Path) -> None:
    """And the other problems are still reported."""
    found = problems(admin={"token_file": str(tmp_path / "none")}, listen="x")
    assert [line.partition(":")[0] for line in found] == ["admin.token_file", "listen"]


def test_no_secret_is_in_an_error() -> None:
    """Values are never repeated: they may be secrets."""
    found = problems(admin={"token": "short-1"}, redis="http://:RP-333@host")
    assert len(found) == 2
    assert not any("short-1" in line or "RP-333" in line for line in found)


def test_admin_on_a_public_address_needs_a_token_or_a_listener_of_its_own() -> None:
    """Decisions and metrics are never open to clients by default."""
    assert "admin.listen" in problems(listen="0.0.0.0:8080")[0]
    parsed(listen="0.0.0.0:8080", admin={"token": "a-long-token"})
    parsed(listen="0.0.0.0:8080", admin={"listen": "127.0.0.1:9090"})


def test_there_must_be_somewhere_to_send_requests() -> None:
    """Neither replicas nor Redis is a mistake."""
    assert "nowhere to send" in problems(replicas=[])[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "models: is missing"), ("[1, 2]", "must be a mapping"), ("a: [", "is not YAML"), ("models: 3", "models")],
)
def test_a_file_that_is_no_configuration_says_so(tmp_path: Path, text: str, said: str) -> None:
    """No traceback for a wrong file."""
    path = tmp_path / "router.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    assert any(said in str(problem) for problem in caught.value.problems)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(ConfigurationError, match="--config"):
        load(tmp_path / "none.yaml", {})


def test_mistakes_in_single_keys_do_not_hide_those_between_keys() -> None:
    """A wrong policy, a public admin, a name used twice and a broken file of a model: one run tells all."""

    def check_models(models: Any) -> list[Problem]:
        return [Problem(f"models.{position}.tokenizer", "is broken") for position, _ in models]

    data = {
        "listen": "0.0.0.0:8080",
        "models": [{"name": "tiny", "tokenizer": "x"}, {"name": "tiny"}, {"nome": "other"}],
        "replicas": [{"url": "http://a:1", "id": "r"}, {"url": "http://A:1/", "id": "r"}],
        "placement": {"policy": "best"},
    }
    with pytest.raises(ConfigurationError) as caught:
        parse(data, {}, check_models)
    assert [problem.path for problem in caught.value.problems] == [
        "models.2.name", "models.2.nome", "placement.policy",
        "models.1.name", "replicas.1.url", "replicas.1.id", "admin",
        "models.0.tokenizer", "models.1.tokenizer",
    ]  # fmt: skip


def test_variables_of_agents_and_of_kubernetes_are_not_the_router_s(caplog: pytest.LogCaptureFixture) -> None:
    """They stand in the same environment; a variable that looks like a mistake is told of."""
    parsed(
        {
            "WARMROUTE_AGENT_REDIS": "redis://10.0.0.9:6379/0",
            "WARMROUTE_NATIVE": "no",
            "WARMROUTE_PORT": "tcp://10.0.0.1:8080",
            "WARMROUTE_SERVICE_HOST": "10.0.0.1",
            "WARMROUTE_ROUTER_PORT_8080_TCP_ADDR": "10.0.0.1",
            "WARMROUTE_PLACMENT__POLICY": "random",
        }
    )
    assert [record.args for record in caplog.records] == [("WARMROUTE_PLACMENT__POLICY",)]


def test_a_broken_line_is_named_and_not_repeated(tmp_path: Path) -> None:
    """It may hold a secret."""
    path = tmp_path / "router.yaml"
    path.write_text('listen: x\nregistration: {secret: "supersecret\n')
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    assert "line" in str(caught.value)
    assert "supersecret" not in str(caught.value)


def test_a_list_that_is_none_says_so() -> None:
    """In the file's own words, not in Python's."""
    assert problems(replicas="http://10.0.0.1:8000")[0] == "replicas: must be a list (begin each item with a dash)"


def test_a_null_file_is_no_file() -> None:
    """The default may be written out."""
    assert parsed(admin={"token_file": None}).admin.token is None


def test_text_in_the_environment_is_taken_as_it_stands() -> None:
    """YAML would make an octal number of this token, a date or a boolean of others."""
    config = parsed(
        {
            "WARMROUTE_ADMIN__TOKEN": "012345670123",
            "WARMROUTE_ADMIN__LISTEN": "127.0.0.1:0",
            "WARMROUTE_REGISTRATION__SECRET": "2026-01-01: {yes, [",
            "WARMROUTE_REDIS__NAMESPACE": "on",
            "WARMROUTE_REDIS__URL": "redis://h/0",
            "WARMROUTE_PATHS": "[/v1/completions]",
        }
    )
    assert config.redis is not None
    assert (config.admin.token, config.registration.secret) == ("012345670123", "2026-01-01: {yes, [")
    assert (config.redis.namespace, config.paths) == ("on", ("/v1/completions",))


def loading(path: Path, text: str) -> list[str]:
    """What is said to be wrong with a file."""
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    return [str(problem) for problem in caught.value.problems]


def test_a_key_that_stands_twice_is_a_problem_with_its_line(tmp_path: Path) -> None:
    """The parser would take the last in silence; every one is told, no value is."""
    text = "listen: a\nadmin:\n  token: secret-1\n  token: secret-2\nlisten: b\n"
    found = loading(tmp_path / "router.yaml", text)
    assert len(found) == 2
    assert "line 5 stands in line 1" in found[0]
    assert "line 4 stands in line 3" in found[1]
    assert not any("secret" in line for line in found)


@pytest.mark.parametrize("text", ["[" * 5_000 + "]" * 5_000, "a: 2026-13-45", "a: 1" + "0" * 5_000])
def test_a_text_that_stops_the_parser_is_one_problem(tmp_path: Path, text: str) -> None:
    """No traceback."""
    assert len(loading(tmp_path / "router.yaml", text)) == 1


@pytest.mark.parametrize("path", ["v1", "/v1/a b", "/v1?x=1", "/admin", "/admin/replicas", "/metrics", "/a%20b", "/\n"])
def test_a_path_that_nobody_could_ask_for_is_refused(path: str) -> None:
    """It would be an entry that never matches, or one that the router answers itself."""
    [problem] = problems(paths=[path])
    assert problem.startswith("paths: ")


def test_an_empty_allow_list_of_paths_is_refused() -> None:
    """A router that refuses every request is not meant."""
    [problem] = problems(paths=[])
    assert "at least one path" in problem


@pytest.mark.parametrize(
    "url",
    [
        f"http://{'a' * 64}.svc",
        "http://h:0",
        "http://u:p@h",
        "http://h/#f",
        "http://h/v1",
        "ftp://h",
        "h:1",
        "http://é",
    ],
)
def test_an_address_that_no_engine_can_have_is_refused(url: str) -> None:
    """At start, rather than with each request."""
    [problem] = problems(replicas=[{"url": url}])
    assert problem.startswith("replicas.0.url: ")


def test_a_replica_id_has_no_control_characters() -> None:
    """It is sent in a header."""
    [problem] = problems(replicas=[{"url": "http://h", "id": "a\r\nb"}])
    assert problem.startswith("replicas.0.id: ")


def test_a_mistake_in_a_model_is_the_only_problem() -> None:
    """The list is not called empty for it."""
    assert [line.partition(":")[0] for line in problems(models=[{"name": ""}])] == ["models.0.name"]
    assert [line.partition(":")[0] for line in problems(models=[])] == ["models"]


@pytest.mark.parametrize("address", [f"{'a' * 70}.svc:80", "a b:80", "..:80"])
def test_an_address_to_listen_on_has_a_host_that_can_be_looked_up(address: str) -> None:
    """The resolver would raise something of its own."""
    assert [line.partition(":")[0] for line in problems(listen=address, admin={"token": "a-long-token"})] == ["listen"]
    assert [line.partition(":")[0] for line in problems(admin={"listen": address})] == ["admin.listen"]


def test_addresses_of_redis_and_of_leases_are_checked_with_the_rest() -> None:
    """What would fail once it runs is said at once."""
    found = problems(redis="redis://:RP-333@/0", registration={"allow": ["10.0.0.0/33", "10.0.0.0/8"]})
    assert [line.partition(":")[0] for line in found] == ["redis.url", "registration.allow"]
    assert "'10.0.0.0/33'" in found[1]
    assert "RP-333" not in found[0]


@pytest.mark.parametrize(
    ("admin", "warned"),
    [
        ({"listen": "0.0.0.0:9090"}, 1),
        ({"listen": "127.0.0.1:9090"}, 0),
        ({"listen": "0.0.0.0:9090", "token": "a-long-token"}, 0),
        ({}, 0),
    ],
)
def test_an_open_admin_is_warned_of(admin: dict[str, str], warned: int) -> None:
    """An address of its own is the operator's word, so it is allowed."""
    assert len(warnings_of(parsed(admin=admin))) == warned


def test_a_name_means_one_thing() -> None:
    """Models, aliases and splits share one space of names."""
    models = [{"name": "a", "aliases": ["b", "x"]}, {"name": "b", "aliases": ["x"]}]
    splits = {"x": [{"model": "a"}], "y": [{"model": "a"}, {"model": "a"}, {"model": "x"}], "z": []}
    found = problems(models=models, splits=splits)
    paths = sorted(line.partition(":")[0] for line in found)
    assert paths == [
        "models.0.aliases.0", "models.1.aliases.0", "splits.x", "splits.y.1.model", "splits.y.2.model", "splits.z",
    ]  # fmt: skip
