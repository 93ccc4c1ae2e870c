"""How the configuration looks to an operator."""

from __future__ import annotations

import json

import pytest

from router.admin.views import masked_config
from router.config_file import parse


@pytest.mark.parametrize(
    "url",
    [
        "redis://:RP-333@h:6379/0",
        "redis://u:RP%40RP-333@h:6379/0",
        "redis://h:6379/0?password=RP-333",
        "redis://h:6379/0?db=1&password=RP-333",
        "unix:///run/v.sock?password=RP-333",
    ],
)
def test_the_password_of_redis_is_masked_wherever_it_stands(url):
    """Before the host and in the query alike."""
    config = parse({"listen": "127.0.0.1:0", "models": [{"name": "tiny"}], "redis": url}, {})
    assert "RP-333" not in json.dumps(masked_config(config))
