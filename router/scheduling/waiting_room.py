"""Requests that wait for a replica with room: who is next, and who is turned away. Pure.

Each model has a line of its own, since room at its replicas is of use to no other. Within a line:

1. The lowest priority number goes first, whoever asked (as vLLM orders its own queue; what a tenant may ask for is
   bounded by its configuration).
2. Among equals, tenants take turns by what they were served, in tokens over their weight (start-time fair queueing:
   each tenant has a clock that its requests wind on, and the one that is furthest behind is served; a tenant that had
   nothing waiting starts at the present, so that being idle saves nothing up).
3. Within a tenant, first come, first served.

The room is bounded. When it is full, the request of which the most is there gives way: the latest and least urgent of
the tenant with the most waiting for its weight. So a tenant that floods the room turns away its own requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from router.errors import QueueFullError, TenantQueueFullError

Owner = TypeVar("Owner")
NOBODY = ""
"""The tenant of requests without one."""


class Ticket(Generic[Owner]):
    """One request's place. `WaitingRoom` alone changes it.

    Attributes:
        owner: Whose turn it is when its turn comes.
        model: The line it stands in.
        tenant: `NOBODY` without tenants.
        weight: The tenant's, over 0.
        priority: Lower goes first.
        cost_tokens: What serving it will take, by estimate.
        since_s: When it came.
    """

    __slots__ = ("cost_tokens", "model", "owner", "priority", "since_s", "tenant", "waits", "weight")

    def __init__(
        self,
        owner: Owner,
        model: str | None,
        since_s: float,
        *,
        tenant: str = NOBODY,
        weight: float = 1.0,
        priority: int = 0,
        cost_tokens: int = 1,
    ) -> None:
        self.owner = owner
        self.model = model
        self.since_s = since_s
        self.tenant = tenant
        self.weight = weight
        self.priority = priority
        self.cost_tokens = max(1, cost_tokens)
        self.waits = False


class _Level(Generic[Owner]):
    """Requests of one line and priority."""

    def __init__(self) -> None:
        self.now = 0.0
        self.flows: dict[str, OrderedDict[Ticket[Owner], None]] = {}
        self.clocks: dict[str, float] = {}

    def add(self, ticket: Ticket[Owner]) -> None:
        flow = self.flows.get(ticket.tenant)
        if flow is None:
            flow = self.flows[ticket.tenant] = OrderedDict()
            self.clocks[ticket.tenant] = max(self.now, self.clocks.get(ticket.tenant, 0.0))
        flow[ticket] = None

    def first(self) -> Ticket[Owner]:
        tenant = min(self.flows, key=lambda name: self.clocks[name])
        return next(iter(self.flows[tenant]))

    def served(self, ticket: Ticket[Owner]) -> None:
        self.now = self.clocks[ticket.tenant]
        self.clocks[ticket.tenant] = self.now + ticket.cost_tokens / ticket.weight
        # Clocks of tenants that wait for nothing matter only while they are ahead.
        if len(self.clocks) > 2 * len(self.flows) + 16:
            self.clocks = {name: at for name, at in self.clocks.items() if at > self.now or name in self.flows}

    def remove(self, ticket: Ticket[Owner]) -> None:
        flow = self.flows[ticket.tenant]
        del flow[ticket]
        if not flow:
            del self.flows[ticket.tenant]


class WaitingRoom(Generic[Owner]):
    """All lines.

    Attributes:
        limit: Requests that may wait, all together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lines: dict[str | None, dict[int, _Level[Owner]]] = {}
        self._counts: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def models(self) -> list[str | None]:
        """Return the models that have a line."""
        return list(self._lines)

    def has_line(self, model: str | None) -> bool:
        """Tell whether someone waits for a model already: whoever comes now is behind."""
        return model in self._lines

    def __iter__(self) -> Iterator[Ticket[Owner]]:
        for line in list(self._lines.values()):
            for level in list(line.values()):
                for flow in list(level.flows.values()):
                    yield from list(flow)

    def enter(self, ticket: Ticket[Owner]) -> Ticket[Owner] | None:
        """Take a place; return the ticket that loses its own for it, if one does.

        Raises:
            QueueFullError: The room is full, and everyone in it has waited longer.
            TenantQueueFullError: The room is full, and most of it is this tenant's.
        """
        evicted = None
        if self._size >= self.limit:
            evicted = self._who_gives_way(ticket)
            self.leave(evicted)
        line = self._lines.setdefault(ticket.model, {})
        level = line.get(ticket.priority)
        if level is None:
            level = line[ticket.priority] = _Level()
        level.add(ticket)
        ticket.waits = True
        self._size += 1
        self._counts[ticket.tenant] = self._counts.get(ticket.tenant, 0) + 1
        self._weights[ticket.tenant] = ticket.weight
        return evicted

    def next(self, model: str | None) -> Ticket[Owner] | None:
        """Return whose turn it is in a line; None when nobody waits there."""
        line = self._lines.get(model)
        return line[min(line)].first() if line else None

    def served(self, ticket: Ticket[Owner]) -> None:
        """Its turn came, and it is gone."""
        if ticket.waits:
            self._lines[ticket.model][ticket.priority].served(ticket)
            self.leave(ticket)

    def leave(self, ticket: Ticket[Owner]) -> None:
        """It waits no more; harmless when it did not."""
        if not ticket.waits:
            return
        ticket.waits = False
        line = self._lines[ticket.model]
        level = line[ticket.priority]
        level.remove(ticket)
        if not level.flows:
            del line[ticket.priority]  # and its clocks: nobody waits, so nobody is owed anything
            if not line:
                del self._lines[ticket.model]
        self._size -= 1
        left = self._counts[ticket.tenant] - 1
        if left:
            self._counts[ticket.tenant] = left
        else:
            del self._counts[ticket.tenant], self._weights[ticket.tenant]

    def _who_gives_way(self, ticket: Ticket[Owner]) -> Ticket[Owner]:
        most = max(self._counts, key=lambda name: self._counts[name] / self._weights[name], default=None)
        if most is None:  # a room without a place
            raise QueueFullError("no replica has room, and none may wait", retry_after_s=1)
        own = (self._counts.get(ticket.tenant, 0) + 1) / ticket.weight
        if most != ticket.tenant and own <= self._counts[most] / self._weights[most]:
            return self._last_of(most)
        last = self._last_of(ticket.tenant) if ticket.tenant in self._counts else None
        if last is not None and last.priority > ticket.priority:
            return last
        if len(self._counts) > 1 and ticket.tenant in self._counts:
            raise TenantQueueFullError("the queue is full, and most of it is of this API key's owner", retry_after_s=1)
        raise QueueFullError(f"no replica has room, and {self._size} requests wait already", retry_after_s=1)

    def _last_of(self, tenant: str) -> Ticket[Owner]:
        """Return a tenant's least urgent ticket, of these the latest."""
        lasts = (
            next(reversed(level.flows[tenant]))
            for line in self._lines.values()
            for level in line.values()
            if tenant in level.flows
        )
        return max(lasts, key=lambda ticket: (ticket.priority, ticket.since_s))
