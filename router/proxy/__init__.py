"""The data plane: HTTP/1.1 on asyncio Protocols and llhttp, from a client's bytes to an engine's and back.

data_plane.py         DataPlane: listens, routes, drains
listening.py          the sockets that clients connect to
client_connection.py  a client's connection: requests in, one at a time
client_writing.py     what it writes, and holds for the turn's end
client_state.py       where it stands, and how long it lingers
incoming_head.py      a request's head while it comes in
head_pattern.py       heads compared byte by byte, and what is made of them
known_heads.py        heads that come again, but for a length
ahead.py              pipelined requests that wait
request_head.py       what a request's head says, and which heads are refused
incoming_body.py      a request's body while it comes in
chunked.py            the chunked coding of request bodies, strictly
half_close.py         has a client that sent FIN left?
door.py               what all clients' connections share
http1_exchange.py     the Exchange of a client's HTTP/1.x connection: how answers are framed
exchange.py           the seam: one request and its answer, without sockets
paths.py              which paths clients may use
replies.py            answers of the router's own
naming.py             aliases and splits: the model's own name in the body
models.py             GET /v1/models from what the fleet serves
forward.py            Forwarder: read, place, send, stream, account
forwarding.py         one request on its way
placing.py            where it goes: chosen, tried again, queued
waiting.py            requests that wait for a replica with room
retries.py            what is tried again, and what is not
tenancy.py            whose request it is, and what its body and head become for it
accounts.py           what one request of a tenant's may use, and has used
forwarded.py          X-Forwarded-*, Forwarded, Via
cors.py               pages in browsers
continuing.py         a stream that broke off goes on elsewhere
hop_by_hop.py         which headers cross the router, and which it sets
pool.py               connections to engines
engine_connection.py  one connection to an engine
answer_head.py        how an answer's body ends, and which headers the client gets
usage.py              token counts out of passing answers
turn.py               what one turn of the loop writes goes out together
deadlines.py          one timer for all timeouts
seams.py              what the data plane needs of the core
"""
