"""How many files and sockets the process may have open.

Shells and service managers start processes with a soft limit of 1,024 for the sake of programs that use select(). A
router needs two sockets a request; it takes as many as the hard limit allows.
"""

from __future__ import annotations

import resource

OWN_FILES = 256
"""For engines that are kept connected, Redis, admin, logs."""


def allow_connections(connections: int) -> str | None:
    """Raise the soft limit to the hard one.

    Args:
        connections: How many clients there may be at once (`limits.connections`).

    Returns:
        A warning where these do not fit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # some systems allow less than they say
    needed = 2 * connections + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    return (
        f"the process may open {soft} files, and limits.connections: {connections} needs {needed}: raise the hard "
        f"limit (ulimit -Hn, LimitNOFILE=) or set limits.connections to at most {max(1, (soft - OWN_FILES) // 2)}"
    )
