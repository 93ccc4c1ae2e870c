"""Where a client's connection stands, and how long it lingers when it is refused."""

from __future__ import annotations

from enum import Enum

DISCARD_BYTES = 256 * 1_024
"""A refused body up to this length is read and thrown away to keep the connection; a longer one ends it."""
LINGER_S = 30.0
"""A refused client may go on sending for this long (nginx: lingering_time)."""
LINGER_QUIET_S = 5.0
"""But ends when it sends nothing for this long (nginx: lingering_timeout)."""
LINGER_DRAINING_S = 1.0
"""And for this long when the router is going away."""


class State(Enum):
    HEAD = "head"
    """A head is awaited or coming in."""
    BODY = "body"
    RUNNING = "running"
    """An exchange has the request; bytes that come meanwhile wait."""
    LINGER = "linger"
    """Answered for the last time. What the client still sends is thrown away: closing would reset the connection, and
    the client might lose the answer that tells it why."""
    GONE = "gone"
    """Closed, or handed over to admin."""
