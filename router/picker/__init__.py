"""The endpoint picker: a gateway (Envoy) carries the traffic and asks here, over ext_proc, where each request goes.

`conversation` is the protocol without I/O, `told` and `messages` what comes and goes in it (`protobuf`), `picking` one
request's placing, `service` one call. `calls` is gRPC, `http2`, `streams` and `frames` what it goes by. Reading,
placement, decisions and metrics are the router's own.
"""
