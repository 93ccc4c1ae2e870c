"""What is tried again, and what is not.

1. No connection to the replica: nothing was sent. Another replica is chosen, up to `retry.attempts` in all.
2. A connection that had served before closed within `STALE_S` with nothing received: the engine had closed it when the
   request left. Once, on a new connection to the same replica.
3. The engine's answer says that it refused the request (`retry.refusal_statuses`): another replica is chosen as in 1;
   where there is none, this answer passes.
4. The connection breaks before an answer began, and the operator allows that prompts are generated twice
   (`retry.broken`): another replica is chosen as in 1.
5. Anything else may have been generated already, so it is not sent twice: 502, 504, or the engine's own answer.

Of all requests only a share may be sent elsewhere (1, 3 and 4; `retry.budget_share`): when many replicas fail, the rest
gets the load of those that failed, but not a multiple of it.

What counts against a replica (`Fleet.failed`): 1, an answer that breaks off, no answer in time, and the engine's own
502, 503 and 504. Any other answer, a 4xx or a 500 too, counts for it: the request may be what was wrong. A client that
leaves counts neither way.
"""

from __future__ import annotations

STALE_S = 0.1
"""A close that comes later than this after the request was sent is not taken for an old connection's: by then the
engine may have been at work on it."""
FAILURE_STATUSES = frozenset((502, 503, 504))
