"""Stand-ins on real sockets: a DNS server, an API server that lists and watches EndpointSlices, and engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from dnslib import AAAA, QTYPE, RCODE, RR, A, DNSRecord

from router.feeds import kubernetes_api, kubernetes_feed

ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")


class Names(asyncio.DatagramProtocol):
    """A DNS server by dnslib, which shares no code with the router's resolver.

    Attributes:
        records: Addresses by kind of record; none at all: the name does not exist.
        mode: `answers`, `servfail`, `silent`, or `truncates` what it says by UDP.
        asked: Questions by UDP.
        asked_by_tcp: Questions by TCP.
    """

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {"A": [], "AAAA": []}
        self.failing_kinds: set[str] = set()
        self.mode = "answers"
        self.asked = 0
        self.asked_by_tcp = 0
        self.address = ""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        self.asked += 1
        if self.mode == "silent":
            return
        reply = self.reply(data)
        if self.mode == "truncates":
            reply.header.tc, reply.rr = 1, []
        self._transport.sendto(reply.pack(), peer)

    def reply(self, data: bytes) -> Any:
        """Return the answer to a question."""
        question = DNSRecord.parse(data)
        kind, reply = QTYPE[question.q.qtype], question.reply()
        if self.mode == "servfail" or kind in self.failing_kinds:
            reply.header.rcode = RCODE.SERVFAIL
        elif not any(self.records.values()):
            reply.header.rcode = RCODE.NXDOMAIN
        else:
            for address in self.records.get(kind, []):
                data_of = AAAA if kind == "AAAA" else A
                reply.add_answer(RR(question.q.qname, question.q.qtype, rdata=data_of(address), ttl=30))
        return reply

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question by TCP, whole."""
        self.asked_by_tcp += 1
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        packed = self.reply(data).pack()
        writer.write(len(packed).to_bytes(2, "big") + packed)
        await writer.drain()
        writer.close()


@pytest.fixture
async def names() -> AsyncIterator[Names]:
    """A running `Names`; `names.address` is for `nameserver`."""
    loop, one = asyncio.get_running_loop(), Names()
    server = await asyncio.start_server(one.serve_tcp, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(lambda: one, ("127.0.0.1", port))
    one.address = f"127.0.0.1:{port}"
    yield one
    transport.close()
    server.close()


@pytest.fixture
async def engines_at() -> AsyncIterator[Callable[..., Any]]:
    """`port, alive = await engines_at(*addresses)`: engines on one port of several addresses, as pods have them.

    An address that is taken out of `alive` fails its health probes.
    """
    runners: list[web.AppRunner] = []

    async def start(*addresses: str) -> tuple[int, set[str]]:
        alive, port = set(addresses), 0

        async def health(request: web.Request) -> web.Response:
            assert request.transport is not None
            return web.Response(status=200 if request.transport.get_extra_info("sockname")[0] in alive else 503)

        async def models(_: web.Request) -> web.Response:
            return web.json_response({"data": [{"id": "tiny", "root": "tiny", "parent": None}]})

        app = web.Application()
        app.router.add_get("/health", health)
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        for address in addresses:
            site = web.TCPSite(runner, address, port)
            await site.start()
            port = runner.addresses[-1][1]
        return port, alive

    yield start
    for runner in runners:
        await runner.cleanup()


class Cluster:
    """An API server's list and watch of EndpointSlices, as `kubectl get --watch` sees them, with faults on demand.

    Attributes:
        lists, watches: How often each was asked for.
        refuses: HTTP status of every answer; 0: none is refused.
        hangs: Watches are accepted and nothing more is said.
        deaf: Changes happen and are told to nobody.
    """

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.lists = self.watches = 0
        self.refuses = 0
        self.hangs = self.deaf = self.gone_by_status = False
        self.selectors: set[str] = set()
        self.url = ""
        self._known_from = 0
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._watching: list[tuple[asyncio.Queue[dict[str, Any] | None], web.Request]] = []

    def put(self, name: str, *endpoints: dict[str, Any], port: Any = 8000, family: str = "IPv4", **more: Any) -> None:
        """Write a slice."""
        ports = port if isinstance(port, list) else [{"name": "http", "port": port, "protocol": "TCP"}]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.version += 1
        self.slices[name] = {
            "metadata": {"name": name, "resourceVersion": str(self.version)},
            "addressType": family,
            "endpoints": list(endpoints),
            "ports": ports,
            **more,
        }
        self._tell(kind, self.slices[name])

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self.version += 1
        item = self.slices.pop(name)
        self._tell("DELETED", {**item, "metadata": {"name": name, "resourceVersion": str(self.version)}})

    def drop_watches(self) -> None:
        """Reset the connection of every watch."""
        for _, request in self._watching:
            assert request.transport is not None
            request.transport.abort()

    def end_watches(self) -> None:
        """End every watch in good order."""
        for queue, _ in self._watching:
            queue.put_nowait(None)

    def compact(self) -> None:
        """Forget what happened until now: who watches from an older version is told 410."""
        self._known_from, self._history = self.version, []

    def _tell(self, kind: str, item: dict[str, Any]) -> None:
        event = {"type": kind, "object": json.loads(json.dumps(item))}
        if self.deaf:
            return
        self._history.append((self.version, event))
        for queue, _ in self._watching:
            queue.put_nowait(event)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one list or watch."""
        self.selectors.add(request.query["labelSelector"])
        is_watch = request.query.get("watch", "false").lower() in ("true", "1")
        self.lists, self.watches = self.lists + (not is_watch), self.watches + is_watch
        if self.refuses:
            status = {"kind": "Status", "code": self.refuses, "message": "as the test wants it"}
            return web.json_response(status, status=self.refuses)
        if not is_watch:
            listed = {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.slices.values())}
            return web.json_response(listed)
        return await self._watch(request, int(request.query["resourceVersion"]), int(request.query["timeoutSeconds"]))

    async def _watch(self, request: web.Request, since: int, lasts_s: int) -> web.StreamResponse:
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old resource version: {since}"}
        if since < self._known_from and self.gone_by_status:
            return web.json_response(gone, status=410)
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        await answer.prepare(request)
        if self.hangs:
            await asyncio.sleep(3600)
        if since < self._known_from:
            await answer.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return answer
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        for version, event in self._history:
            if version > since:
                queue.put_nowait(event)
        entry = (queue, request)
        self._watching.append(entry)
        try:
            async with asyncio.timeout(lasts_s):
                while (event := await queue.get()) is not None:
                    line = json.dumps(event).encode() + b"\n"
                    await answer.write(line[:40])  # events come in pieces
                    await answer.write(line[40:])
        except TimeoutError:
            bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
            await answer.write(json.dumps(bookmark).encode() + b"\n")
        finally:
            self._watching.remove(entry)
        return answer


def pod(name: str, uid: str, address: str = "127.0.0.1", **conditions: bool | None) -> dict[str, Any]:
    """Return an endpoint, ready unless `conditions` say otherwise."""
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False, **conditions},
        "targetRef": {"kind": "Pod", "name": name, "uid": uid},
    }


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A running `Cluster`."""
    one = Cluster()
    app = web.Application()
    app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/team/endpointslices", one.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


@pytest.fixture
def follow(cluster: Cluster, run_feeds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`follow(relist_s=...)`: feeds that follow Service vllm of the cluster, logged in by a kubeconfig."""
    monkeypatch.setattr(kubernetes_feed, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(kubernetes_feed, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(kubernetes_api, "HUNG_AFTER_S", 0.5)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": cluster.url}}],
                "users": [{"name": "test", "user": {"token": "a-token"}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "team"}}],
            }
        )
    )

    def start(registration: dict[str, Any] | None = None, **source: Any) -> Any:
        discovery = {"kubernetes": [{"service": "vllm", **source}], "kubeconfig": str(kubeconfig)}
        return run_feeds(discovery=discovery, registration=registration or {})

    return start


@pytest.fixture
def pods() -> Callable[..., dict[str, Any]]:
    """See `pod`."""
    return pod
