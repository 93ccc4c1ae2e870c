"""What slices mean, without a server."""

from __future__ import annotations

from router.config_discovery import KubernetesSource
from router.feeds.endpoint_slices import members_of


def a_slice(*endpoints, family="IPv4", ports=({"name": "http", "port": 8000},)) -> dict:
    return {"metadata": {"name": "s"}, "addressType": family, "endpoints": list(endpoints), "ports": list(ports)}


def found(*slices, **source):
    return members_of(slices, KubernetesSource(service="vllm", **source))


def test_a_pod_with_two_families_is_one_replica(pods):
    """Its IPv4 address is used, whichever slice comes first."""
    six = a_slice(pods("p", "u", "fd00::1"), family="IPv6")
    four = a_slice(pods("p", "u", "10.0.0.1"))
    [member], problems = found(six, four)
    assert (member.url, problems) == ("http://10.0.0.1:8000", [])
    [member], _ = found(six)
    assert member.url == "http://[fd00::1]:8000"


def test_a_pod_in_two_slices_is_ready_where_one_says_so_and_ends_where_one_says_so(pods):
    """An endpoint moves between slices, and is in both for a while."""
    ready, out = pods("p", "u", "10.0.0.1"), pods("p", "u", "10.0.0.1", ready=False)
    ending = pods("p", "u", "10.0.0.1", ready=False, terminating=True)
    [member], _ = found(a_slice(out), a_slice(ready))
    assert (member.draining, member.out_reason) == (False, None)
    [member], _ = found(a_slice(ready), a_slice(ending))
    assert member.draining


def test_no_endpoints_no_conditions_and_no_pod_are_read_as_the_api_means_them():
    """`endpoints: null` is nobody, no word of readiness is ready, and an endpoint made by hand has a name too."""
    assert found({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": None, "ports": None}) == ([], [])
    [member], _ = found(a_slice({"addresses": ["10.0.0.1"]}))
    assert (member.out_reason, member.draining, member.replica_id[:5]) == (None, False, "vllm-")
    assert "10.0.0.1" not in member.replica_id


def test_the_port_is_found_by_number_by_name_or_as_the_only_one(pods):
    """What can't be told is a problem, and names what is there."""
    two = a_slice(pods("p", "u", "10.0.0.1"), ports=[{"name": "http", "port": 1}, {"name": "metrics", "port": 2}])
    assert [found(two, port=port)[0][0].url[-2:] for port in ("http", "metrics", 3)] == [":1", ":2", ":3"]
    members, [problem] = found(two)
    assert members == []
    assert "2 TCP ports" in problem
    members, [problem] = found(two, port="grpc")
    assert members == []
    assert "'http', 'metrics'" in problem


def test_pods_of_several_namespaces_keep_apart(pods):
    """StatefulSets of one name in two namespaces have pods of one name."""
    source = KubernetesSource(service="vllm", namespace="team-a")
    [member], _ = members_of([a_slice(pods("vllm-0", "u", "10.0.0.1"))], source, ".team-a")
    assert member.replica_id == "vllm-0.team-a"
