"""What agents and routers may do in Redis: rules for `ACL SETUSER`, with the least rights that each needs. Pure.

An agent writes the keys of its namespace; a router reads them, and writes operators' orders to drain, what agents
are to be told of missing blocks, what is asked of it, and what it has in flight. Neither sees any other key or
channel, or may do what concerns the server. Scripts run with the rights of their user, so what they call is listed too.
"""

from __future__ import annotations

from router.kv.keys import DEFAULT_NAMESPACE

_CONNECTION = ("auth", "hello", "ping", "select", "client|setinfo", "client|setname", "time", "cluster|slots", "asking")
_AGENT = (
    "script|load evalsha",
    "get set del unlink exists rename expire pexpire",
    "xadd xtrim xrevrange",
    "rpush lpop",
    "zadd zrem zremrangebyscore",
)
_ROUTER = (
    "get set del",
    "lrange rpush ltrim pexpire",
    "xread xrange xrevrange xadd",
    "zrevrangebyscore",
    "hset hdel hgetall expire",
)


def agent_rules(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Return the rules of an agent's user, but for its name, `on` and password."""
    return _rules(f"~{{{namespace}:* ~{{{namespace}}}:units", _AGENT)


def router_rules(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Return the rules of a router's user, but for its name, `on` and password."""
    written = f"~{{{namespace}:drain}}:* ~{{{namespace}:doubt}}:* ~{{{namespace}:rates}}:* ~{{{namespace}:*}}:load"
    return _rules(f"%R~{{{namespace}:* %R~{{{namespace}}}:units {written}", _ROUTER)


def _rules(keys: str, commands: tuple[str, ...]) -> str:
    words = [*_CONNECTION, *(word for group in commands for word in group.split())]
    return f"resetkeys {keys} resetchannels -@all " + " ".join(f"+{word}" for word in words)
