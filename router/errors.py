"""Every error of the router's own, in one shallow tree.

    WarmrouteError                 code, http_status, safe_to_retry, openai type
    |-- ConfigurationError         many problems at once; exit code 2
    |-- RequestError               the client can fix it (4xx)
    |   |-- MalformedRequestError, PathNotFoundError, MethodNotAllowedError, ModelNotFoundError,
    |   |   ReplicaNotFoundError, BodyTooLargeError, HeadersTooLargeError, UpgradeRefusedError, RequestTimeoutError,
    |   |   InvalidApiKeyError, RateLimitedError, TenantQueueFullError, PriorityRefusedError, PolicyRefusedError,
    |   |   AmbiguousBodyError, CacheSaltRefusedError, IsolationUnsupportedError, UnsupportedEncodingError
    |-- ServiceError               the fleet or the router can't serve it now (5xx)
        |-- NoReplicaError (NoRoomError), QueueFullError, QueueTimeoutError, OverloadedError, DrainingError,
            ConnectError, UpstreamBrokenError, UpstreamTimeoutError

`code` is stable and documented in docs/client-api.md; a test fails when one is not. An engine's own error is not here:
it passes through as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar


class WarmrouteError(Exception):
    """A fault of the router's own; the base of all errors that it raises on purpose.

    Attributes:
        code: Stable word for clients and dashboards.
        http_status: What a client gets.
        openai_type: The `type` of OpenAI's error shape.
        safe_to_retry: Whether the same request may be sent again without risk of being generated twice.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    openai_type: ClassVar[str] = "server_error"
    safe_to_retry: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def to_json(self) -> bytes:
        """Return the body in OpenAI's shape: `{"error": {message, type, param, code}}`."""
        error = {"message": self.message, "type": self.openai_type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the configuration.

    Attributes:
        path: Where, as `placement.weights.running_tokens` or `replicas.0.url`; empty for the file as a whole.
        message: What is wrong.
        remedy: What would be right; empty where the message says it.
    """

    path: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}" + (f" ({self.remedy})" if self.remedy else "")


class ConfigurationError(WarmrouteError):
    """The configuration can't be used. All problems are in it, so that one run shows them all."""

    code = "configuration_error"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class RequestError(WarmrouteError):
    """The client can fix it."""

    http_status = 400
    openai_type = "invalid_request_error"


class MalformedRequestError(RequestError):
    """The HTTP framing is broken or ambiguous; the connection is closed."""

    code = "malformed_request"


class PathNotFoundError(RequestError):
    """The path is not in the allow-list (`paths`)."""

    code = "path_not_found"
    http_status = 404


class MethodNotAllowedError(RequestError):
    """The path exists, with another method."""

    code = "method_not_allowed"
    http_status = 405


class ModelNotFoundError(RequestError):
    """No replica serves the model that was asked for."""

    code = "model_not_found"
    http_status = 404


class ReplicaNotFoundError(RequestError):
    """No replica of this name is known (`GET /admin/replicas` lists them)."""

    code = "replica_not_found"
    http_status = 404


class BodyTooLargeError(RequestError):
    """The body is over `limits.body_bytes`."""

    code = "body_too_large"
    http_status = 413


class HeadersTooLargeError(RequestError):
    """The request line and headers are over `limits.header_bytes`."""

    code = "headers_too_large"
    http_status = 431


class UpgradeRefusedError(RequestError):
    """The client asked for another protocol (WebSocket, HTTP/2 cleartext) or CONNECT."""

    code = "upgrade_refused"


class RequestTimeoutError(RequestError):
    """The client was too slow to send its request (`timeouts.request_s`)."""

    code = "request_timeout"
    http_status = 408


class InvalidApiKeyError(RequestError):
    """The request gives no API key, more than one, or one that is in no tenant's list (`tenants`)."""

    code = "invalid_api_key"
    http_status = 401


class RateLimitedError(RequestError):
    """The tenant has used up its requests or tokens (`tenants[].requests_per_minute`, `tokens_per_minute`)."""

    code = "rate_limit_exceeded"
    http_status = 429
    openai_type = "rate_limit_error"


class TenantQueueFullError(RequestError):
    """The queue is full, and most of it is this tenant's."""

    code = "tenant_queue_full"
    http_status = 429
    openai_type = "rate_limit_error"


class PriorityRefusedError(RequestError):
    """The tenant's requests may not ask for this `priority` (`tenants[].priority_min`, `priority_max`)."""

    code = "priority_refused"


class PolicyRefusedError(RequestError):
    """`x-warmroute-policy` names no policy, or none that requests may ask for (`placement.request_policies`)."""

    code = "policy_refused"


class AmbiguousBodyError(RequestError):
    """The body of an isolated tenant is not surely the same to every parser, so no cache salt can be set in it."""

    code = "ambiguous_body"


class CacheSaltRefusedError(RequestError):
    """The request brings a `cache_salt` that an isolated tenant may not set (`isolation.client_salt`), or a bad one."""

    code = "cache_salt_refused"


class IsolationUnsupportedError(RequestError):
    """The tenant is isolated, and a request like this can't carry a cache salt."""

    code = "isolation_unsupported"
    http_status = 403
    openai_type = "permission_error"


class UnsupportedEncodingError(RequestError):
    """The tenant is isolated, and its body's Content-Encoding is not gzip."""

    code = "unsupported_encoding"
    http_status = 415


class ServiceError(WarmrouteError):
    """The fleet or the router can't serve the request now."""

    http_status = 503


class NoReplicaError(ServiceError):
    """Replicas serve this model, but none may take a request now."""

    code = "no_replica_available"
    safe_to_retry = True


class NoRoomError(NoReplicaError):
    """All replicas that could take the request have `limits.max_in_flight` requests; only `/admin/explain` says so."""

    code = "replicas_full"


class QueueFullError(ServiceError):
    """All replicas have `limits.max_in_flight` requests, and `limits.queue_requests` wait already."""

    code = "queue_full"
    safe_to_retry = True


class QueueTimeoutError(ServiceError):
    """No replica had room within `timeouts.queue_s`."""

    code = "queue_timeout"
    safe_to_retry = True


class OverloadedError(ServiceError):
    """A limit of the router's own is reached (`limits.connections`, `limits.buffered_bytes`)."""

    code = "overloaded"
    safe_to_retry = True


class DrainingError(ServiceError):
    """The router is going away; another one takes the request."""

    code = "draining"
    safe_to_retry = True


class ConnectError(ServiceError):
    """No connection to any replica that was tried; nothing was sent."""

    code = "connect_failed"
    http_status = 502
    safe_to_retry = True

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = 1) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)


class UpstreamBrokenError(ServiceError):
    """The replica closed or answered nonsense before its answer's head was complete."""

    code = "upstream_broken"
    http_status = 502


class UpstreamTimeoutError(ServiceError):
    """The replica did not start to answer in time (`timeouts.first_byte_s`)."""

    code = "upstream_timeout"
    http_status = 504
