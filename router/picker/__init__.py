"""The endpoint picker: a gateway (Envoy) carries the traffic and asks here, over ext_proc, where each request goes.

`conversation` is the protocol without I/O, `messages` its answers, `picking` one request's placing, `server` the gRPC
side. Reading, placement, decisions and metrics are the router's own.
"""
