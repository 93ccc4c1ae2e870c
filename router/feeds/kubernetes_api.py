"""EndpointSlices of one Service from Kubernetes' API: a list, and a watch from there on.

kubernetes-asyncio knows how to log in (service account with its renewed token, kubeconfig) and the paths. It is
imported only here, once it is needed, and away from the loop: that takes a second. What it returns is read as JSON
lines here, under time and size limits of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from router.config_discovery import KubernetesSource

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
CONNECT_S = 5.0
LIST_S = 15.0
HUNG_AFTER_S = 5.0
"""The server is told how long a watch lasts; one that goes on for so much longer hangs."""
MAX_LINE_BYTES = 8 * 2**20
"""More than etcd lets an object have, by far."""


class ApiError(Exception):
    """The API server could not be asked, or refused, or what it said can't be read."""


class GoneError(ApiError):
    """The version that was watched from is no longer known (410): all must be listed anew."""


class SliceApi:
    """One Service's slices.

    Args:
        source: Which Service.
        kubeconfig: How to log in; None: as the pod that this is.
    """

    def __init__(self, source: KubernetesSource, kubeconfig: Path | None) -> None:
        self._source = source
        self._kubeconfig = kubeconfig
        self._client: Any = None
        self._slices: Any = None
        self.namespace = source.namespace or ""

    async def __aenter__(self) -> SliceApi:
        """Log in.

        Raises:
            ApiError: There is no way to.
        """
        client, config = await asyncio.to_thread(_imported)
        configuration = client.Configuration()
        try:
            if self._kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)
            else:
                await config.load_kube_config(
                    config_file=str(self._kubeconfig), client_configuration=configuration, persist_config=False
                )
            self.namespace = self._source.namespace or self._default_namespace(config)
            self._client = client.ApiClient(configuration)
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            raise ApiError(f"can't log in to the cluster: {error}") from error
        self._slices = client.DiscoveryV1Api(self._client)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def list(self) -> tuple[list[dict[str, Any]], str]:
        """Return all slices as they are now, and the version to watch from.

        Raises:
            ApiError: That failed.
        """
        # No version is asked for: the server then answers from its store, never from a cache that lags behind.
        async with self._ask(LIST_S) as answer:
            data = _read(await answer.content.read(), "a list of EndpointSlices")
        items, version = data.get("items") or [], (data.get("metadata") or {}).get("resourceVersion")
        if not isinstance(items, list) or not version:
            raise ApiError("the answer is no list of EndpointSlices")
        return items, str(version)

    async def watch(self, version: str) -> AsyncIterator[dict[str, Any]]:
        """Yield events from a version on, until the watch is over.

        Raises:
            GoneError: The version is too old.
            ApiError: The watch broke off or hung.
        """
        lasts_s = max(1, round(self._source.watch_s))
        limit_s = self._source.watch_s + HUNG_AFTER_S
        asked = self._ask(
            limit_s, watch=True, resource_version=version, timeout_seconds=lasts_s, allow_watch_bookmarks=True
        )
        async with asked as answer:
            rest = b""
            async for part in answer.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _event(line)
                if len(rest) > MAX_LINE_BYTES:
                    raise ApiError("a watch's event is too long")
            if rest.strip():
                raise ApiError("a watch was cut within an event")

    @contextlib.asynccontextmanager
    async def _ask(self, limit_s: float, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_S)
        try:
            answer = await self._slices.list_namespaced_endpoint_slice(
                self.namespace,
                label_selector=f"kubernetes.io/service-name={self._source.service}",
                _preload_content=False,
                _request_timeout=timeout,
                **options,
            )
            async with answer:
                if answer.status != 200:
                    raise await _refusal(answer, self.namespace)
                yield answer
        except TimeoutError as error:
            raise ApiError(f"no end within {limit_s:g} s: it hangs") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(f"{type(error).__name__}: {error}") from error

    def _default_namespace(self, config: Any) -> str:
        if self._kubeconfig is None:
            with contextlib.suppress(OSError):
                return OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
            return "default"
        _, active = config.list_kube_config_contexts(config_file=str(self._kubeconfig))
        return str(active["context"].get("namespace") or "default")


def _imported() -> tuple[Any, Any]:
    from kubernetes_asyncio import client, config

    return client, config


async def _refusal(answer: aiohttp.ClientResponse, namespace: str) -> ApiError:
    said = ""
    with contextlib.suppress(ApiError):
        said = str(_read(await answer.content.read(65_536), "a Status").get("message", ""))[:300]
    if answer.status == 410:
        return GoneError(said or "410")
    hint = ""
    if answer.status in (401, 403):
        hint = f"; the router's service account needs `list` and `watch` on endpointslices in namespace {namespace}"
    return ApiError(f"HTTP {answer.status} {said}{hint}")


def _event(line: bytes) -> dict[str, Any]:
    event = _read(line, "a watch's event")
    thing = event.get("object")
    if not isinstance(thing, dict):
        raise ApiError("a watch's event has no object")
    if event.get("type") == "ERROR":
        said = str(thing.get("message", ""))[:300]
        raise GoneError(said) if thing.get("code") == 410 else ApiError(f"the watch ended: {said}")
    return event


def _read(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ApiError(f"{what} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise ApiError(f"{what} is no object")
    return found
