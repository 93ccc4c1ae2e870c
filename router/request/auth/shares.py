"""How several routers divide a tenant's limit: by what is asked of each, without asking anyone on a request's path.

Each router tells how much is asked of it, and hears the same of the others, every second or so. While all of it fits
the limit, a router may give what is asked of it and an equal part of the rest. Where it does not fit, the least asked
are served in full first (max-min fairness), so that one busy router can't starve the others. A small part is divided
equally in any case: a router of which nothing was asked yet must be able to begin.
"""

from __future__ import annotations

from collections.abc import Iterable

EQUAL_SHARE = 0.05
"""Of each limit, divided equally whatever is asked."""


def share_of(own_per_minute: float, others_per_minute: Iterable[float], limit_per_minute: float) -> float:
    """Return the share of a limit that one router may give, over 0 and up to 1; all routers' shares add up to 1.

    Args:
        own_per_minute: Units asked of this router, a minute.
        others_per_minute: Likewise of each other router.
        limit_per_minute: The whole limit.
    """
    others = [max(0.0, asked) for asked in others_per_minute]
    own = max(0.0, own_per_minute)
    routers = len(others) + 1
    asked = [own, *others]
    to_divide = limit_per_minute * (1 - EQUAL_SHARE)
    if sum(asked) <= to_divide:
        granted = own + (to_divide - sum(asked)) / routers
    else:
        granted = min(own, _level(sorted(asked), to_divide))
    return granted / limit_per_minute + EQUAL_SHARE / routers


def _level(asked: list[float], to_divide: float) -> float:
    """Return the height up to which all are served when `asked`, ascending, does not fit."""
    left = to_divide
    for position, amount in enumerate(asked):
        level = left / (len(asked) - position)
        if amount > level:
            return level
        left -= amount
    return asked[-1]
