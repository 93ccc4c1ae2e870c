"""Options are checked as a whole, and secrets come by file or environment."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from replica.agent.command import configure
from replica.agent.settings import API_KEY_VARIABLE, REDIS_VARIABLE, SECRET_VARIABLE, AgentSettings, from_args
from replica.errors import UsageError

GOOD = ["--engine-url", "http://127.0.0.1:8000", "--redis", "redis://127.0.0.1:6379/0"]


def settings(*arguments: str, **environment: str) -> AgentSettings:
    parser = argparse.ArgumentParser()
    configure(parser)
    return from_args(parser.parse_args(arguments), environment)


def problems(*arguments: str, **environment: str) -> list[str]:
    with pytest.raises(UsageError) as raised:
        settings(*arguments, **environment)
    return raised.value.problems


def test_two_options_are_enough() -> None:
    """Engine and Redis suffice; the rest has defaults."""
    given = settings(*GOOD)
    assert given.advertise == "http://127.0.0.1:8000"
    assert (given.lease_s, given.snapshot_s, given.keys.namespace, given.keys.lanes) == (10.0, 30.0, "wr", 16)
    assert given.registration_secret is None


def test_the_default_id_is_the_hosts_name_and_no_address() -> None:
    """Clients see it: pods differ by name, engines of one host by the hash of their address, which it does not tell."""
    one = settings(*GOOD, HOSTNAME="pool-0").replica_id
    other = settings(*GOOD, "--advertise", "http://10.0.0.7:8001", HOSTNAME="pool-0").replica_id
    assert one.startswith("pool-0-")
    assert one != other
    assert one == settings(*GOOD, HOSTNAME="pool-0").replica_id
    assert not {"127", "8000", "10.0.0.7", "8001"} & set(re.split("[-.]", one + "-" + other))
    assert settings(*GOOD, HOSTNAME="a b/c").replica_id.startswith("a-b-c-")
    assert settings(*GOOD).replica_id


@pytest.mark.parametrize("url", ["https://h:1/v1", "http://h:1/v1"])
def test_an_address_that_every_router_refuses_is_refused_here(url: str) -> None:
    """As --advertise, and as the --engine-url that would stand for it; with the remedy."""
    (told,) = problems(*GOOD, "--advertise", url)
    assert told.startswith("--advertise: ")
    assert "http://HOST:PORT" in told
    (told,) = problems("--engine-url", url, "--redis", "redis://h")
    assert told.startswith("--advertise: ")
    given = settings("--engine-url", url, "--redis", "redis://h", "--advertise", "http://10.0.0.7:8000")
    assert (given.engine_url, given.advertise) == (url, "http://10.0.0.7:8000")


def test_the_engines_command_follows_two_dashes() -> None:
    """Its options are its own; without it there is none."""
    given = settings(*GOOD, "--wait-ready", "--", "vllm", "serve", "tiny", "--port", "8000", "--lanes", "x")
    assert given.engine_command == ("vllm", "serve", "tiny", "--port", "8000", "--lanes", "x")
    assert settings(*GOOD).engine_command == ()


def test_every_problem_is_told_at_once() -> None:
    """Eight mistakes are eight lines, each with its option."""
    told = problems(
        *("--engine-url", "127.0.0.1:8000", "--redis", "http://h", "--kv-events", "5557", "--kv-replay", "tcp://h"),
        *("--listen", "nowhere", "--lanes", "0", "--lease-s", "0", "--replica-id", "a b"),
    )
    for option in (
        "--engine-url",
        "--redis",
        "--kv-events",
        "--kv-replay",
        "--listen",
        "--lanes",
        "--lease-s",
        "--replica-id",
    ):
        assert sum(option in line for line in told) == 1, (option, told)


def test_nothing_at_all_says_what_is_needed() -> None:
    """Without options, the two that are needed are named, with their form."""
    told = problems()
    assert any("--engine-url" in line and "http://" in line for line in told)
    assert any("--redis" in line and REDIS_VARIABLE in line for line in told)


@pytest.mark.parametrize(
    "url",
    ["localhost", "redis://", "redis://h:port", "redis://h:99999999", "mysql://h", "redis://" + "a" * 64],
)
def test_a_malformed_redis_url_is_told_without_its_password(url: str) -> None:
    """The address may hold a password, so it is not repeated."""
    secret = url.replace("://", "://:hunter22@", 1)
    for given in (url, secret):
        told = problems("--engine-url", "http://h:1", "--redis", given)
        assert any("--redis" in line for line in told)
        assert not any("hunter22" in line for line in told)


def test_the_redis_url_may_come_by_environment() -> None:
    """So that its password is on no command line; the option wins over it."""
    alone = settings("--engine-url", "http://h:1", **{REDIS_VARIABLE: "redis://:pw@r:1/0"})
    both = settings(*GOOD, **{REDIS_VARIABLE: "redis://:pw@r:1/0"})
    assert (alone.redis_url, both.redis_url) == ("redis://:pw@r:1/0", "redis://127.0.0.1:6379/0")


def test_secrets_come_by_file_or_environment(tmp_path: Path) -> None:
    """The file wins; surrounding white space is not part of it; the engine's key comes by environment."""
    file = tmp_path / "secret"
    file.write_text("from-a-file-0123456789\n")
    environment = {SECRET_VARIABLE: "from-the-environment", API_KEY_VARIABLE: "k"}
    assert settings(*GOOD, **environment).registration_secret == b"from-the-environment"
    by_file = settings(*GOOD, "--registration-secret-file", str(file), **environment)
    assert (by_file.registration_secret, by_file.engine_api_key) == (b"from-a-file-0123456789", "k")


def test_a_short_or_missing_secret_is_told(tmp_path: Path) -> None:
    """Fewer than 16 bytes, or a file that is not there."""
    assert "16 bytes" in problems(*GOOD, **{SECRET_VARIABLE: "short"})[0]
    assert "can't read" in problems(*GOOD, "--registration-secret-file", str(tmp_path / "none"))[0]


def test_credentials_in_the_engines_url_are_refused() -> None:
    """They would end up in leases."""
    (told,) = problems("--engine-url", "http://user:hunter22@h:1", "--redis", "redis://h")
    assert "credentials" in told
    assert "hunter22" not in told


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], None), (["--wait-ready"], None), (["--wait-ready", "5"], 5.0)]
)
def test_waiting_for_the_engine_is_bounded_where_asked(arguments: list[str], expected: float | None) -> None:
    """By default, and with the bare option, the agent waits for ever."""
    assert settings(*GOOD, *arguments).wait_ready_s == expected


LONG = "a" * 64


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("--wait-ready", value) for value in ("inf", "nan", "-1")],
        *[("--engine-url", url) for url in ("http://h:1?x=1", "http://h:1#x", "http://h:0", f"http://{LONG}:1")],
        *[("--engine-url", url) for url in ("http://a..b:1", f"http://{'a.' * 127}a:1")],
        *[("--advertise", url) for url in ("http://h:0", f"http://{LONG}.example:1", "http://a..b:1")],
        *[("--kv-events", f"tcp://{rest}") for rest in ("h:99999", "h:0", f"{LONG}:1", "a..b:1")],
        ("--kv-replay", "tcp://h:65536"),
        *[("--listen", value) for value in (f"{LONG}:1", "a..b:1", "h:" + "9" * 5000)],
    ],
)
def test_what_no_socket_takes_is_one_line(option: str, value: str) -> None:
    """Times without end, queries, ports out of range and hosts that no resolver takes are told, and nothing else."""
    (told,) = problems(*GOOD, option, value)
    assert told.startswith(f"{option}: ")
