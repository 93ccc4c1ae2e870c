"""The data plane: HTTP/1.1 on asyncio Protocols and llhttp, from a client's bytes to an engine's and back.

data_plane.py         DataPlane: listens, routes, drains
client_connection.py  a client's connection: requests in, one at a time
request_head.py       what a request's head says, and which heads are refused
chunked.py            the chunked coding of request bodies, strictly
http1_exchange.py     the Exchange of a client's HTTP/1.x connection: how answers are framed
exchange.py           the seam: one request and its answer, without sockets
paths.py              which paths clients may use
models.py             GET /v1/models from what the fleet serves
forward.py            Forwarder: read, place, send, stream, account
forwarding.py         one request on its way
hop_by_hop.py         which headers cross the router, and which it sets
pool.py               connections to engines
engine_connection.py  one connection to an engine
usage.py              token counts out of passing answers
deadlines.py          one timer for all timeouts
seams.py              what the data plane needs of the core
"""
