"""`make bench-accepting`: how evenly worker processes share connections, by how they listen.

Workers accept on uvloop as the router's do, each connection is answered once and closed or kept. Two ways are compared:
one listening socket that all of them inherit, and a socket for each on the same port (`SO_REUSEPORT`), which is what
`workers` uses. Printed is each worker's share of connections; even is 1/N.

- `short`: connections one after the other, each closed after its answer: an idle router.
- `burst`: all at once, kept open: clients that start together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterable

import uvloop

CONNECTIONS = 400


class Answering(asyncio.Protocol):
    """Tells which worker it is."""

    name = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self.name)  # type: ignore[attr-defined]  # uvloop's do not derive from asyncio's


async def _serve(listening: socket.socket, ready: int) -> None:
    Answering.name = f"{os.getpid()}\n".encode()
    server = await asyncio.get_running_loop().create_server(Answering, sock=listening, backlog=4_096)
    os.write(ready, b".")
    await server.serve_forever()


def workers(sockets: Iterable[socket.socket]) -> list[int]:
    """Start one for each socket; return their process ids once all accept."""
    ready, done = os.pipe()
    pids = []
    for each in sockets:
        pid = os.fork()
        if not pid:
            try:
                uvloop.run(_serve(each, done))
            finally:
                os._exit(0)
        pids.append(pid)
    for _ in pids:
        os.read(ready, 1)
    os.close(ready)
    os.close(done)
    return pids


def listening(way: str, count: int) -> list[socket.socket]:
    """Return a socket for each worker: the same one, or one of each."""
    first = socket.socket()
    if way == "reuseport":
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    first.bind(("127.0.0.1", 0))
    if way == "shared":
        return [first] * count
    sockets = [first]
    for _ in range(count - 1):
        more = socket.socket()
        more.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        more.bind(first.getsockname())
        sockets.append(more)
    return sockets


def shares(address: tuple[str, int], traffic: str) -> list[float]:
    """Connect so many times; return each worker's share, greatest first."""
    took: Counter[bytes] = Counter()
    kept = []
    if traffic == "burst":
        kept = [socket.create_connection(address) for _ in range(CONNECTIONS)]
        for each in kept:
            took[each.recv(64)] += 1
    else:
        for _ in range(CONNECTIONS):
            with socket.create_connection(address) as each:
                took[each.recv(64)] += 1
    for each in kept:
        each.close()
    return [count / CONNECTIONS for _, count in took.most_common()]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4], help="how many (default: 2 and 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    rows = []
    for count in options.workers:
        for way in ("shared", "reuseport"):
            sockets = listening(way, count)
            pids = workers(sockets)
            try:
                for traffic in ("short", "burst"):
                    found = shares(sockets[0].getsockname(), traffic)
                    rows.append({"workers": count, "listen": way, "traffic": traffic, "shares": found})
            finally:
                for pid in pids:
                    os.kill(pid, 9)
                    os.waitpid(pid, 0)
                for each in set(sockets):
                    each.close()
    if options.json:
        print(json.dumps({"rows": rows}))
        return 0
    print(f"{'workers':<8} {'listen':<10} {'traffic':<8} share of each worker")
    for row in rows:
        told = " ".join(f"{share:.0%}" for share in row["shares"])
        print(f"{row['workers']:<8} {row['listen']:<10} {row['traffic']:<8} {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
