"""One server, or one address behind which the primary moves."""

from __future__ import annotations

from redis.exceptions import NoPermissionError, ResponseError

from router.kv.client.server import Server
from router.kv.client.topology import ClusterFoundError, NewServer, WrongKindError
from router.kv.redis_slots import SlotMap
from router.kv.redis_url import Address


class DirectTopology:
    """See the module.

    Args:
        at: Address, or the path of a Unix socket.
        new_server: Makes the server.
    """

    is_spread = False
    slots: SlotMap | None = None

    def __init__(self, at: Address | str, new_server: NewServer) -> None:
        self._server = new_server(at)
        self._is_known = False

    async def server_of(self, key: str) -> Server:
        """Return the server, once it has said what it is."""
        if not self._is_known:
            mode = await mode_of(self._server)
            if mode == "cluster":
                raise ClusterFoundError("it is a node of a Cluster")
            if mode == "sentinel":
                raise WrongKindError("it is a Sentinel, no Redis: write redis+sentinel://HOST:PORT/SERVICE")
            self._is_known = True
        return self._server

    def moved(self, key: str, host: str, port: int, asked: Server) -> None:
        """Only a Cluster redirects."""
        raise ClusterFoundError("it is a node of a Cluster")

    def asked_of(self, host: str, port: int, asked: Server) -> Server:
        """Only a Cluster redirects."""
        raise ClusterFoundError("it is a node of a Cluster")

    async def failed(self, server: Server, error: BaseException) -> None:
        """Another server may answer at the address the next time."""
        self._is_known = False

    async def close(self) -> None:
        """Close the server's connections."""
        await self._server.close()


async def mode_of(server: Server) -> str:
    """Return `standalone`, `cluster` or `sentinel`; what does not say counts as the first."""
    try:
        return str((await server.hello()).get("mode", "standalone"))
    except NoPermissionError:
        return "standalone"
    except ResponseError as error:
        if "unknown command" in str(error).lower():
            return "standalone"
        raise
