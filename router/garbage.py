"""How often the garbage collector looks for cycles."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Have the garbage collector look at less, less often. For the end of a process' start-up.

    What a request makes dies with its last reference; cycles are rare. By default each 700 new objects are looked
    through, and now and then all that live, decisions and caches among them: a tenth of the router's time, in pauses
    that grow with its memory. What start-up made lives until the end and is not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
