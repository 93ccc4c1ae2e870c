"""What EndpointSlices say of replicas. No I/O.

Slices are read as the API's JSON, not by a client's models: these refuse a slice whose `endpoints` is null, as that of
a Service without pods may be. An endpoint may be in several slices for a while, under an old state in one of them, and
in two for good where a Service has IPv4 and IPv6: a replica is the pod (its uid), whatever addresses it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from router.config_discovery import KubernetesSource
from router.feeds.probed import Member
from router.kv.addresses import normalised_url

NOT_READY = "Kubernetes says that it is not ready"
_FAMILIES = {"IPv4": 0, "IPv6": 1}


def members_of(
    slices: Iterable[Mapping[str, Any]], source: KubernetesSource, suffix: str = ""
) -> tuple[list[Member], list[str]]:
    """Return the replicas that a Service's slices name, each once, and what can't be used of them.

    Args:
        slices: As the API has them.
        source: For port and scheme.
        suffix: Goes behind each pod's name, where pods of several namespaces may bear one name.
    """
    found: dict[str, Member] = {}
    problems: list[str] = []
    ordered = sorted(slices, key=lambda item: _FAMILIES.get(str(item.get("addressType")), 2))
    for item in ordered:
        endpoints = item.get("endpoints") or ()
        port = _port(item, source.port)
        if isinstance(port, str):
            if endpoints:
                problems.append(port)
            continue
        for endpoint in endpoints:
            member = _member(endpoint, port, source, suffix)
            if member is not None:
                key = member.life or member.url
                found[key] = member if key not in found else _joined(found[key], member)
    return unique(found.values()), problems


def unique(members: Iterable[Member]) -> list[Member]:
    """Return members so that no name and no address is there twice.

    Names and addresses are used again, by a pod that takes a deleted one's place. Where two claim one, the one that
    may take requests holds it, and of equals the one that was told last.
    """
    ranked = sorted(enumerate(members), key=lambda item: (item[1].draining, item[1].out_reason is not None, -item[0]))
    names: set[str] = set()
    urls: set[str] = set()
    kept = []
    for position, member in ranked:
        if member.replica_id not in names and member.url not in urls:
            names.add(member.replica_id)
            urls.add(member.url)
            kept.append((position, member))
    return [member for _, member in sorted(kept, key=lambda item: item[0])]


def _joined(first: Member, other: Member) -> Member:
    """Return one pod from two endpoints: it is ready where one says so, but what ends never comes back."""
    draining = first.draining or other.draining
    reason = None if None in (first.out_reason, other.out_reason) else first.out_reason
    return replace(first, draining=draining, out_reason=reason)


def _member(endpoint: Mapping[str, Any], port: int, source: KubernetesSource, suffix: str) -> Member | None:
    # The addresses of one endpoint mean the same pod; by the API's own rule the first one is enough.
    address = next(iter(endpoint.get("addresses") or ()), None)
    if not isinstance(address, str):
        return None
    try:
        url = normalised_url(f"{source.scheme}://{f'[{address}]' if ':' in address else address}:{port}")
    except ValueError:
        return None
    conditions = endpoint.get("conditions") or {}
    target = endpoint.get("targetRef") or {}
    name = target.get("name")
    if not name:  # made by hand, without a pod
        name = f"{source.service}-{hashlib.blake2b(url.encode(), digest_size=4).hexdigest()}"
    is_terminating = conditions.get("terminating") is True
    is_out = conditions.get("ready") is False and not is_terminating  # no word is to be read as ready
    return Member(f"{name}{suffix}", url, str(target.get("uid") or ""), is_terminating, NOT_READY if is_out else None)


def _port(item: Mapping[str, Any], wanted: int | str | None) -> int | str:
    """Return the port's number, or what is wrong."""
    if isinstance(wanted, int):
        return wanted
    ports = {str(port.get("name") or ""): port.get("port") for port in item.get("ports") or () if _is_tcp(port)}
    name = (item.get("metadata") or {}).get("name", "?")
    if wanted is None:
        if len(ports) != 1:
            return f"slice {name} has {len(ports)} TCP ports: set the source's `port`"
        found = next(iter(ports.values()))
    elif wanted not in ports:
        return f"slice {name} has no TCP port {wanted!r}; it has {', '.join(sorted(map(repr, ports))) or 'none'}"
    else:
        found = ports[wanted]
    return found if isinstance(found, int) else f"slice {name} gives its port no number"


def _is_tcp(port: Mapping[str, Any]) -> bool:
    return (port.get("protocol") or "TCP") == "TCP"
