"""What operators read: health, metrics, replicas, decisions, configuration (aiohttp)."""
