"""The allow-list of paths."""

from __future__ import annotations

import pytest

from router.config import DEFAULT_PATHS
from router.proxy.paths import AllowedPaths, is_admin, split_target
from router.request.endpoints import ENDPOINTS

ALLOWED = AllowedPaths(DEFAULT_PATHS)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/models", "/v1/models"),
        (b"/v1/models/", "/v1/models"),
        (b"//v1///models", "/v1/models"),
        (b"/v1/%6dodels", "/v1/models"),
        (b"/v1%2fmodels", "/v1/models"),
        (b"/x/../v1/./models", "/v1/models"),
        (b"http://host:1/v1/models", "/v1/models"),
        (b"/reset_prefix_cache", None),
        (b"/v1/models/../../reset_prefix_cache", None),
        (b"/v1/models/%2e%2e/%2e%2e/reset_prefix_cache", None),
        (b"/v1/models%2f..%2f..%2fsleep", None),
        (b"/v1/load_lora_adapter", None),
        (b"/invocations", None),
        (b"/v1/models;x=1", None),
        (b"/v1\\models", None),
        (b"/v1/%256dodels", None),
        (b"/v1/models%00", None),
        (b"/../v1/models", None),
        (b"/v1/models#x", None),
        (b"/V1/models", None),
        (b"*", None),
        (b"", None),
        (b"v1/models", None),
    ],
)
def test_paths_match_after_normalisation(target: bytes, path: str | None) -> None:
    """Another spelling of an allowed path is that path; nothing else gets through."""
    assert ALLOWED.match(split_target(target)[0]) == path


def test_the_query_stays_as_it_is() -> None:
    """What follows the first question mark is kept byte for byte."""
    assert split_target(b"/v1/models?x=a%2Fb&y=%20?z") == (b"/v1/models", b"?x=a%2Fb&y=%20?z")
    assert split_target(b"http://h/v1/models?") == (b"/v1/models", b"?")
    assert split_target(b"http://h?x") == (b"/", b"?x")


def test_admin_paths() -> None:
    """Admin is exactly its paths and what is below /admin/."""
    assert [is_admin(path) for path in (b"/healthz", b"/admin", b"/admin/x", b"/metrics", b"/readyz")] == [True] * 5
    assert [is_admin(path) for path in (b"/healthz2", b"/administrator", b"/v1/admin/", b"/x/../admin")] == [False] * 4


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
def test_what_the_router_reads_is_allowed(path: str) -> None:
    """Every path of the engine that the router knows how to read is open unless the operator says otherwise."""
    assert ALLOWED.match(split_target(path.encode())[0]) == path
