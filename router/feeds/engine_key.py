"""What the router's own requests to engines carry: the engines' API key, where they ask for one."""

from __future__ import annotations

from router.config_tenants import UpstreamConfig


class EngineKey(dict[str, str]):
    """The headers, the same mapping for all who ask engines; `take` changes it for all at once."""

    def __init__(self, upstream: UpstreamConfig) -> None:
        super().__init__()
        self.take(upstream)

    def take(self, upstream: UpstreamConfig) -> None:
        """Take over another configuration's key."""
        self.clear()
        if upstream.api_key is not None:
            self["authorization"] = f"Bearer {upstream.api_key}"
