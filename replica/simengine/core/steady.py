"""Many steps of decoding at once, for a simulation that asks for no token by itself.

While nobody comes and nobody ends, each step gives every running request one token. All that can happen is that a
request needs a block or fills one, once in `block_size` tokens. So only those requests are looked at, in the step in
which `Scheduler.schedule` would have done it, and the rest is added up when the run ends. What comes out is what step
by step comes out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from replica.simengine.core.request import Request

Grow = Callable[[Request, int], bool]


class SteadyRun:
    """Steps that do nothing but decode. Steps are counted from 0.

    Args:
        running: Those that run, in order; each has its next token to compute.
        steps: How many steps none of them ends in, at least 1.
        grow: Gives a request blocks for a number of tokens and stores those that it fills; False if there are none.
        settle: Brings a request's tokens, and what hangs on them, to a number of computed tokens.
    """

    def __init__(
        self, running: Sequence[Request], steps: int, grow: Grow, settle: Callable[[Request, int], None]
    ) -> None:
        self.steps = steps
        self._grow = grow
        self._settle = settle
        self._begun = [(request, request.computed_tokens) for request in running]
        self._due = [(request.quiet_tokens - tokens, place) for place, (request, tokens) in enumerate(self._begun)]
        heapq.heapify(self._due)

    @property
    def next_change(self) -> int:
        """The next step in which blocks are taken or filled; `steps` where there is none before."""
        return min(self.steps, self._due[0][0])

    def change(self, step: int) -> bool:
        """Take and fill the blocks of a step, which is `next_change`; False where there are not enough.

        Then the run ends before this step, which the scheduler has to make by itself.
        """
        due = self._due
        while due[0][0] == step:
            place = due[0][1]
            request, begun = self._begun[place]
            self._settle(request, begun + step)
            if not self._grow(request, 1):
                return False
            heapq.heapreplace(due, (max(step + 1, request.quiet_tokens - begun), place))
        return True

    def end(self, steps: int) -> int:
        """Bring everybody to where so many steps have brought them; return the tokens that were generated."""
        for request, begun in self._begun:
            self._settle(request, begun + steps)
        return steps * len(self._begun)
