"""The EndpointSlice watch against kmock, an API server's stand-in of others' making, which is told what goes wrong.

Its reading of Kubernetes' API (paths, actions, Status objects, streams) is not ours. The stand-in of `conftest` goes
further: it has a history, and breaks connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import kmock as kmock_package
import pytest

SLICES = "discovery.k8s.io/v1/endpointslices"
Expired = kmock_package.KubernetesError(status=410, reason="Expired", message="too old resource version")
GONE = {"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired"}}


class Script:
    """What the API server says. Lists tell of `slices` as they are; a watch goes on with what is put into `events`.

    Attributes:
        events: For the watch that runs: an event, bytes as they are, or None for its end.
        watched_from: The version that each watch asked for.
        refuses: The next watch's error; None: none.
    """

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.lists = 0
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.watched_from: list[str] = []
        self.refuses: Exception | None = None

    def hold(self, name: str, port: int, *endpoints: dict[str, Any]) -> dict[str, Any]:
        """Write a slice, and return it. Nobody is told."""
        self.version += 1
        self.slices[name] = {
            "metadata": {"name": name, "namespace": "team", "resourceVersion": str(self.version)},
            "addressType": "IPv4",
            "endpoints": list(endpoints),
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        }
        return self.slices[name]

    def tell(self, kind: str, item: dict[str, Any]) -> None:
        """Have the watch tell of a change."""
        self.events.put_nowait({"type": kind, "object": item})

    def serve(self, request: Any) -> Any:
        """Serve a list or a watch. kmock knows `watch=true` alone; the client writes `True`, which servers take too."""
        if request.params.get("watch", "false").lower() != "true":
            self.lists += 1
            return {"metadata": {"resourceVersion": str(self.version)}, "items": [*self.slices.values()]}
        self.watched_from.append(request.params["resourceVersion"])
        error, self.refuses = self.refuses, None
        if error is not None:
            raise error
        return self._watch()

    async def _watch(self) -> AsyncIterator[Any]:
        yield b""
        while (event := await self.events.get()) is not None:
            yield event


@pytest.fixture
def script(kmock: Any) -> Script:
    """What kmock answers by."""
    made = Script()
    kmock.resources[SLICES] = {"namespaced": True, "kind": "EndpointSlice"}
    kmock["get", kmock_package.resource(SLICES)] << made.serve
    return made


@pytest.fixture
def cluster(kmock: Any, script: Script) -> SimpleNamespace:
    """In the place of the other stand-in, for `follow`."""
    return SimpleNamespace(url=str(kmock.url).rstrip("/"))


@pytest.fixture
async def started(
    follow: Callable[..., Any], script: Script, engines: Any, pods: Any, eventually: Any
) -> SimpleNamespace:
    """A router that follows two pods, p0 and p1, in a slice each; `ports` are theirs."""
    ports = [urlsplit((await engines()).url).port for _ in range(3)]
    script.hold("a", ports[0], pods("p0", "u0"))
    script.hold("b", ports[1], pods("p1", "u1"))
    router = follow(watch_s=20)
    await eventually(lambda: set(router.fleet.replicas) == {"p0", "p1"} and len(script.watched_from) == 1)
    return SimpleNamespace(router=router, fleet=router.fleet, ports=ports)


def serials(started: SimpleNamespace) -> dict[str, int]:
    return {name: replica.units[0].serial for name, replica in started.fleet.replicas.items()}


async def test_a_watch_goes_on_from_the_list(script: Script, started: Any, pods: Any, eventually: Any) -> None:
    """From the list's version on; what is added, changed and deleted is followed without another list."""
    assert script.watched_from == [str(script.version)]
    script.tell("ADDED", script.hold("c", started.ports[2], pods("p2", "u2")))
    await eventually(lambda: set(started.fleet.replicas) == {"p0", "p1", "p2"})
    script.tell("DELETED", script.slices.pop("b"))
    await eventually(lambda: set(started.fleet.replicas) == {"p0", "p2"})
    assert script.lists == 1


@pytest.mark.parametrize("as_event", [True, False])
async def test_410_gone(script: Script, started: Any, pods: Any, eventually: Any, as_event: bool) -> None:
    """As an event within a watch, or as the next watch's status: a pod that joined and one that left are found."""
    before = serials(started)
    script.hold("c", started.ports[2], pods("p2", "u2"))
    del script.slices["b"]
    if as_event:
        script.events.put_nowait(GONE)
    script.refuses = None if as_event else Expired
    script.events.put_nowait(None)
    await eventually(lambda: set(started.fleet.replicas) == {"p0", "p2"})
    assert serials(started)["p0"] == before["p0"]
    await eventually(lambda: script.watched_from[-1] == str(script.version))


async def test_a_watch_that_is_cut_within_an_event(script: Script, started: Any, pods: Any, eventually: Any) -> None:
    """Half an event changes nothing; the delete that it would have told is found."""
    del script.slices["b"]
    script.events.put_nowait(b'{"type": "DELETED", "object": {"metadata": {"na')
    script.events.put_nowait(None)
    await eventually(lambda: set(started.fleet.replicas) == {"p0"})
    script.tell("ADDED", script.hold("c", started.ports[2], pods("p2", "u2")))
    await eventually(lambda: set(started.fleet.replicas) == {"p0", "p2"})


async def test_names_and_addresses_that_are_used_again(
    script: Script, started: Any, pods: Any, eventually: Any
) -> None:
    """The same name with another uid, and another name at the same address, are replicas that hold nothing yet."""
    before = serials(started)
    script.tell("MODIFIED", script.hold("a", started.ports[0], pods("p0", "u9")))
    script.tell("MODIFIED", script.hold("b", started.ports[1], pods("p1-new", "u8")))
    await eventually(lambda: set(started.fleet.replicas) == {"p0", "p1-new"})
    await eventually(lambda: serials(started).get("p0", before["p0"]) != before["p0"])
    assert serials(started)["p1-new"] not in before.values()


async def test_terminating_and_evicted_pods(script: Script, started: Any, pods: Any, eventually: Any) -> None:
    """One drains and keeps its place while it is told of; the other leaves at once."""
    before = serials(started)
    script.tell("MODIFIED", script.hold("a", started.ports[0], pods("p0", "u0", ready=False, terminating=True)))
    script.tell("MODIFIED", script.hold("b", started.ports[1]))
    await eventually(lambda: set(started.fleet.replicas) == {"p0"} and started.fleet.replicas["p0"].draining)
    assert serials(started) == {"p0": before["p0"]}
    script.tell("MODIFIED", script.hold("a", started.ports[0]))
    await eventually(lambda: not started.fleet.replicas)
