"""Tenants: several keys each, a salt that is theirs alone, priorities within bounds."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from router.config import RouterConfig
from router.errors import InvalidApiKeyError, PriorityRefusedError
from router.request.auth.tenants import Tenant, Tenants

SECRET = "0123456789abcdef"


def tenants(*listed: dict[str, Any], **changes: Any) -> Tenants:
    config = {
        "models": [{"name": "tiny"}],
        "isolation": {"secret": SECRET, "client_salt": "combine"},
        "tenants": [{"keys": [hashlib.sha256(b"key").hexdigest()]} | item for item in listed],
    }
    made = Tenants.of(RouterConfig.model_validate(config | changes), b"blind")
    assert made is not None
    return made


def asked(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


def test_each_of_a_tenant_s_keys_is_the_tenant_s() -> None:
    """So keys can be changed one after another."""
    hashes = ["sha256:" + hashlib.sha256(b"new").hexdigest().upper(), hashlib.sha256(b"old").hexdigest()]
    made = tenants({"name": "acme", "keys": hashes}, {"name": "beta"})
    assert [made.of_request(asked(key)).name for key in ("new", "old", "key")] == ["acme", "acme", "beta"]
    with pytest.raises(InvalidApiKeyError):
        made.of_request(asked("neither"))


def test_the_salt_is_the_hmac_of_secret_and_tenant() -> None:
    """As documented: an operator can compute it, nobody else can."""
    (tenant,) = tenants({"name": "acme"})
    expected = hmac.new(SECRET.encode(), b"acme", hashlib.sha256).digest()
    assert tenant.salt() == base64.urlsafe_b64encode(expected).rstrip(b"=").decode()
    assert len(tenant.salt()) == 43


def test_a_client_s_salt_makes_another_salt_and_never_another_tenant_s() -> None:
    """Names and client salts can't be shifted into one another."""
    secret = SECRET.encode()
    salts = [
        Tenant("a", secret).salt(),
        Tenant("a", secret).salt("b"),
        Tenant("ab", secret).salt(),
        Tenant("a.b", secret).salt(),
        Tenant("a", secret).salt("\ud800"),
        Tenant("a", b"another secret..").salt(),
    ]
    assert len(set(salts)) == len(salts)


def test_a_tenant_that_is_not_isolated_has_no_salt_and_tells_nothing() -> None:
    """Headers that tell what is cached are for salted tenants only."""
    made = tenants({"name": "acme", "isolated": False, "tells_cached": True}, {"name": "b", "tells_cached": True})
    first, second = made
    assert (first.isolated, first.tells_cached) == (False, False)
    assert (second.isolated, second.tells_cached) == (True, True)


def test_no_tenants_is_not_an_empty_list_of_them() -> None:
    """None: anyone may send."""
    assert Tenants.of(RouterConfig.model_validate({"models": [{"name": "tiny"}]}), b"blind") is None


def test_the_secret_is_in_no_representation() -> None:
    """A tenant may stand in a traceback."""
    assert SECRET not in repr(Tenant("acme", SECRET.encode()))


def test_a_request_s_priority_is_held_to_the_tenant_s_bounds() -> None:
    """It is refused, not bent: the engine reads the same body."""
    tenant = Tenant("acme", priority=5, priority_min=3, priority_max=9)
    assert [tenant.priority_of(asked) for asked in (None, 3, 9)] == [5, 3, 9]
    for wrong in (2, 10):
        with pytest.raises(PriorityRefusedError):
            tenant.priority_of(wrong)


def test_without_bounds_nobody_gets_ahead_of_others() -> None:
    """By default a request may ask to go later than its tenant's priority, never earlier."""
    (tenant,) = tenants({"name": "acme"})
    assert tenant.priority_of(7) == 7
    with pytest.raises(PriorityRefusedError):
        tenant.priority_of(-1)
