"""Certificates that can't be used are problems at start, all of them at once."""

from __future__ import annotations

from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from router.config_file import parse
from router.errors import ConfigurationError

LEAST: dict[str, Any] = {"models": [{"name": "tiny"}], "replicas": [{"url": "http://10.0.0.1:8000"}]}


def problems(**changes: Any) -> list[str]:
    """What is said to be wrong."""
    with pytest.raises(ConfigurationError) as caught:
        parse({**LEAST, **changes}, {})
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Good and bad files."""
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    one, other = ca.issue_cert("a.example"), ca.issue_cert("b.example")
    key = load_pem_private_key(one.private_key_pem.bytes(), None)
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    contents = {
        "cert": one.cert_chain_pems[0].bytes(),
        "key": one.private_key_pem.bytes(),
        "both": one.private_key_and_cert_chain_pem.bytes(),
        "other_key": other.private_key_pem.bytes(),
        "sealed_key": sealed,
        "ca": ca.cert_pem.bytes(),
        "text": b"no certificate",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: str(folder / name) for name in contents} | {"missing": str(folder / "missing")}


def test_good_files_are_taken(files: dict[str, str]) -> None:
    """A certificate with its key beside it or in the same file, with CAs of clients."""
    config = parse({**LEAST, "tls": {"cert": files["both"], "client_ca": files["ca"]}}, {})
    assert config.tls is not None
    assert config.tls.min_version == "1.2"
    parse({**LEAST, "tls": {"cert": files["cert"], "key": files["key"]}, "upstream": {"tls": {"ca": files["ca"]}}}, {})


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"cert": "missing"}, "tls.cert: can't read "),
        ({"cert": "cert", "key": "missing"}, "tls.key: can't read "),
        ({"cert": "cert"}, "tls.cert: "),
        ({"cert": "text", "key": "key"}, "tls.cert: "),
        ({"cert": "cert", "key": "other_key"}, "tls.key: the key is not the certificate's"),
        ({"cert": "cert", "key": "sealed_key"}, "tls.key: the key has a passphrase"),
        ({"cert": "both", "client_ca": "text"}, "tls.client_ca: "),
        ({"cert": "both", "client_ca": "missing"}, "tls.client_ca: can't read "),
    ],
)
def test_a_file_that_can_not_be_used_is_a_problem(files: dict[str, str], tls: dict[str, str], said: str) -> None:
    """With its key's path; nobody is asked for a passphrase."""
    [problem] = problems(tls={key: files[name] for key, name in tls.items()})
    assert problem.startswith(said)


def test_all_sides_are_checked_at_once(files: dict[str, str]) -> None:
    """Clients', admin's and engines', beside what else is wrong with them."""
    found = problems(
        tls={"cert": files["missing"]},
        admin={"tls": {"cert": files["missing"]}},
        upstream={"tls": {"ca": files["missing"], "key": files["key"]}},
    )
    paths = sorted(problem.partition(":")[0] for problem in found)
    assert paths == ["admin.tls", "admin.tls.cert", "tls.cert", "upstream.tls.ca", "upstream.tls.key"]


@pytest.mark.parametrize("version", ["1.0", "1.1", "3", 1.3])
def test_old_versions_can_not_be_asked_for(files: dict[str, str], version: object) -> None:
    """TLS 1.0 and 1.1 are no choice; the number that YAML makes of 1.3 is."""
    if version == 1.3:
        parse({**LEAST, "tls": {"cert": files["both"], "min_version": version}}, {})
        return
    [problem] = problems(tls={"cert": files["both"], "min_version": version})
    assert problem.startswith("tls.min_version: ")
