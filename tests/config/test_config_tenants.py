"""Tenants in the configuration: listed or in a file, hashed, and every mistake at once without a key in it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from router.admin.views import masked_config
from router.config import RouterConfig
from router.config_file import load, parse
from router.errors import ConfigurationError

LEAST: dict[str, Any] = {
    "models": [{"name": "tiny", "tokenizer": "tiny"}],
    "replicas": [{"url": "http://10.0.0.1:8000"}],
    "admin": {"token": "admin-token"},
    "isolation": {"secret": "a secret of enough length"},
}
HASH = hashlib.sha256(b"the key").hexdigest()
OTHER = hashlib.sha256(b"another key").hexdigest()


def parsed(**changes: Any) -> RouterConfig:
    return parse({**LEAST, **changes}, {})


def problems(**changes: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parsed(**changes)
    return [str(problem) for problem in caught.value.problems]


def test_tenants_may_be_listed_or_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    """By `tenants_file`, or by its name in the place of the list."""
    listed = parsed(tenants=[{"name": "acme", "keys": [HASH]}]).tenants
    file = tmp_path / "tenants.yaml"
    for text in (f"- name: acme\n  keys: [{HASH}]\n", f"tenants:\n- name: acme\n  keys: ['sha256:{HASH.upper()}']\n"):
        file.write_text(text)
        for config in (parsed(tenants=str(file)), parsed(tenants_file=str(file))):
            assert config.tenants == listed
            assert config.tenants_file == file


def test_mistakes_in_a_tenants_file_are_told_with_all_others(tmp_path: Path) -> None:
    """Under the paths that they would have in the list."""
    file = tmp_path / "tenants.yaml"
    file.write_text("- name: acme\n  keys: [plain]\n- keys: []\n")
    found = problems(tenants=str(file), listen="x")
    assert [line.partition(":")[0] for line in found] == [
        "listen",
        "tenants.0.keys",
        "tenants.1.name",
        "tenants.1.keys",
    ]


@pytest.mark.parametrize("text", ["", "acme", "{a: b}", "- [", "\x00"])
def test_a_tenants_file_that_is_no_list_is_a_problem(tmp_path: Path, text: str) -> None:
    """And never an open door."""
    file = tmp_path / "tenants.yaml"
    file.write_text(text)
    assert problems(tenants_file=str(file))
    assert problems(tenants_file=str(tmp_path / "none"))[0].startswith("tenants_file: can't read ")


def test_an_empty_list_of_tenants_is_a_problem() -> None:
    """Taken for none at all, it would serve anyone."""
    assert problems(tenants=[])[0].startswith("tenants: names nobody")


def test_a_key_that_is_not_hashed_is_not_repeated() -> None:
    """It is a secret, and the problem goes to a log."""
    found = problems(tenants=[{"name": "acme", "keys": ["wr-the-key-itself"]}])
    assert found[0].startswith("tenants.0.keys: must be SHA-256 hashes of keys")
    assert "wr-the-key-itself" not in " ".join(found)


def test_names_and_keys_belong_to_one_tenant() -> None:
    """A key that two tenants have would be the last one's."""
    found = problems(
        tenants=[
            {"name": "acme", "keys": [OTHER, HASH]},
            {"name": "acme", "keys": ["sha256:" + HASH.upper()]},
        ]
    )
    assert [line.partition(":")[0] for line in found] == ["tenants.1.name", "tenants.1.keys.0"]


def test_isolated_tenants_need_a_secret() -> None:
    """Without one anybody could compute their salts."""
    tenant = {"name": "acme", "keys": [HASH]}
    assert problems(tenants=[tenant], isolation={})[0].startswith("isolation.secret: is missing")
    assert parsed(tenants=[{**tenant, "isolated": False}], isolation={}).isolation.secret is None


def test_admin_is_not_the_tenants_business() -> None:
    """A loopback address is no longer enough: a port of its own or a token."""
    tenants = [{"name": "acme", "keys": [HASH]}]
    assert problems(tenants=tenants, admin={})[0].startswith("admin: decisions and metrics would be open to every")
    assert parsed(tenants=tenants, admin={"listen": "127.0.0.1:0"}).admin.listen == "127.0.0.1:0"


@pytest.mark.parametrize("name", ["", "a b", "é", "a\0", "x" * 65, "-a", "a/b"])
def test_a_name_fits_labels_and_logs(name: str) -> None:
    """Letters, digits, dots, dashes."""
    assert problems(tenants=[{"name": name, "keys": [HASH]}])[0].startswith("tenants.0.name: ")


def test_secrets_come_from_files_and_are_never_shown(tmp_path: Path) -> None:
    """The salts' secret, the engines' key, and hashes of keys."""
    (tmp_path / "salt").write_text("the-salt-secret-of-24-characters\n")
    (tmp_path / "engine").write_text("UK-222\n")
    file = tmp_path / "router.yaml"
    file.write_text(
        "models: [{name: tiny, tokenizer: tiny}]\nreplicas: [{url: 'http://10.0.0.1:8000'}]\n"
        f"admin: {{token: the-admin-token}}\nisolation: {{secret_file: {tmp_path}/salt}}\n"
        f"upstream: {{api_key_file: {tmp_path}/engine}}\ntenants: [{{name: acme, keys: [{HASH}]}}]\n"
    )
    config = load(file, {})
    assert config.isolation.secret == "the-salt-secret-of-24-characters"
    assert config.upstream.api_key == "UK-222"
    shown = str(masked_config(config))
    for secret in ("the-salt-secret", "UK-222", HASH, "the-admin-token"):
        assert secret not in shown
    assert "acme" in shown


@pytest.mark.parametrize("key", ["a b", "é", "a\nb: c"])
def test_an_engine_s_key_fits_a_header(key: str) -> None:
    """It can't end the line and begin another."""
    assert problems(upstream={"api_key": key})[0].startswith("upstream.api_key: must be printable ASCII")
