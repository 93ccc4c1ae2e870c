"""Replicas by DNS: a real resolver asks a real server over UDP and TCP."""

from __future__ import annotations

import asyncio

import pytest

from router.config_discovery import DnsSource
from router.feeds.dns_feed import Addresses, replica_name
from router.feeds.dns_lookup import Found, Lookup, LookupFailedError
from router.fleet.facts import Trust


def source_of(names, port=8000, **more) -> dict:
    return {"name": "engines.team.svc.example", "port": port, "nameserver": names.address, "every_s": 0.1, **more}


def urls(router) -> list[str]:
    return sorted(replica.url for replica in router.fleet.replicas.values())


async def rounds(names, eventually, count: int) -> None:
    """Wait for so many more lookups, of two questions each, to be over."""
    until = names.asked + 2 * (count + 1)
    await eventually(lambda: names.asked >= until)


async def test_every_record_is_a_replica_that_is_probed(run_feeds, names, engines_at, eventually):
    """Each address joins under a name that does not tell it, and its models are the engine's."""
    port, _ = await engines_at("127.0.0.2", "127.0.0.3")
    names.records["A"] = ["127.0.0.2", "127.0.0.3"]
    router = run_feeds(discovery={"dns": [source_of(names, port)]})
    await eventually(lambda: len(router.fleet.replicas) == 2)
    assert urls(router) == [f"http://127.0.0.2:{port}", f"http://127.0.0.3:{port}"]
    for name, replica in router.fleet.replicas.items():
        assert name.startswith("engines-")
        assert "127" not in name.replace("engines-", "", 1) or "." not in name
        assert (replica.source, list(replica.models), replica.units[0].trust) == ("dns", ["tiny"], Trust.APPROXIMATE)
    assert router.value("warmroute_feed_up", feed="dns") == 1
    await eventually(lambda: router.feeds.reasons() == [])


async def test_an_address_leaves_after_it_was_missing_from_several_answers(run_feeds, names, engines_at, eventually):
    """One short answer withdraws nobody: some servers rotate through their records."""
    port, _ = await engines_at("127.0.0.2", "127.0.0.3")
    names.records["A"] = ["127.0.0.2", "127.0.0.3"]
    router = run_feeds(discovery={"dns": [source_of(names, port, gone_after=4)]})
    await eventually(lambda: len(router.fleet.replicas) == 2)
    names.records["A"] = ["127.0.0.2"]
    await eventually(lambda: urls(router) == [f"http://127.0.0.2:{port}"])


@pytest.mark.parametrize("mode", ["servfail", "silent", "nxdomain"])
async def test_a_resolver_that_fails_or_knows_nothing_empties_no_fleet(run_feeds, names, engines_at, eventually, mode):
    """Neither an error nor an empty answer says anything about engines that answer their probes."""
    port, _ = await engines_at("127.0.0.2", "127.0.0.3")
    names.records["A"] = ["127.0.0.2", "127.0.0.3"]
    router = run_feeds(discovery={"dns": [source_of(names, port, gone_after=1)]})
    await eventually(lambda: len(router.fleet.replicas) == 2)
    await eventually(lambda: router.feeds.reasons() == [])
    if mode == "nxdomain":
        names.records["A"] = []
        await rounds(names, eventually, 3)
    else:
        names.mode = mode
        await eventually(lambda: router.value("warmroute_discovery_failures_total", feed="dns") >= 1, timeout_s=30)
        assert router.value("warmroute_feed_up", feed="dns") == 0
    assert len(router.fleet.replicas) == 2
    assert all(replica.down_reason is None for replica in router.fleet.replicas.values())


async def test_an_empty_answer_withdraws_those_whose_engines_are_gone(run_feeds, names, engines_at, eventually):
    """A Service that was scaled to nothing leaves no replica behind."""
    port, alive = await engines_at("127.0.0.2")
    names.records["A"] = ["127.0.0.2"]
    router = run_feeds(discovery={"dns": [source_of(names, port, gone_after=2)]})
    await eventually(lambda: len(router.fleet.replicas) == 1)
    names.records["A"] = []
    alive.clear()
    await eventually(lambda: not router.fleet.replicas)


async def test_an_answer_that_is_cut_short_is_asked_for_again_by_tcp(names):
    """A fleet whose records do not fit a datagram is whole."""
    names.records["A"] = [f"10.1.{block}.{host}" for block in range(4) for host in range(1, 101)]
    names.mode = "truncates"
    found = await Lookup(DnsSource(**source_of(names)))()
    assert found == Found(frozenset(names.records["A"]))
    assert names.asked_by_tcp >= 1


async def test_both_families_are_looked_up_and_half_an_answer_is_not_complete(names):
    """A server that fails at AAAA still tells who joined, and not who left."""
    names.records = {"A": ["10.0.0.1"], "AAAA": ["fd00::1"]}
    lookup = Lookup(DnsSource(**source_of(names)))
    assert await lookup() == Found(frozenset({"10.0.0.1", "fd00::1"}))
    names.failing_kinds = {"AAAA"}
    assert await lookup() == Found(frozenset({"10.0.0.1"}), complete=False)
    names.failing_kinds = {"A", "AAAA"}
    with pytest.raises(LookupFailedError):
        await lookup()


def test_only_whole_answers_in_a_row_count():
    """An address that was seen once more, or an answer that is half, begins or stops the count."""
    addresses = Addresses(gone_after=2)
    both, one = Found(frozenset("ab")), Found(frozenset("a"))
    assert addresses.take(both, lambda _: True) == ["a", "b"]
    assert addresses.take(one, lambda _: True) == ["a", "b"]
    assert addresses.take(both, lambda _: True) == ["a", "b"]
    assert addresses.take(one, lambda _: True) == ["a", "b"]
    assert addresses.take(Found(frozenset("a"), complete=False), lambda _: True) == ["a", "b"]
    assert addresses.take(one, lambda _: True) == ["a"]
    nothing = Found(frozenset())
    assert addresses.take(nothing, lambda _: True) == ["a"]
    assert addresses.take(nothing, lambda _: False) == []


async def test_an_address_that_may_not_be_used_is_not(run_feeds, names, engines_at, eventually):
    """Who can forge an answer must not receive prompts: `registration.allow` holds for what is found too."""
    port, _ = await engines_at("127.0.0.2", "127.0.0.3")
    names.records["A"] = ["127.0.0.2", "127.0.0.3"]
    registration = {"allow": ["127.0.0.3/32"]}
    router = run_feeds(discovery={"dns": [source_of(names, port)]}, registration=registration)
    await eventually(lambda: urls(router) == [f"http://127.0.0.3:{port}"])
    await rounds(names, eventually, 2)
    assert urls(router) == [f"http://127.0.0.3:{port}"]


async def test_sources_change_while_running(run_feeds, names, engines_at, eventually):
    """A source that is no longer configured takes its replicas with it; one that stays is not interrupted."""
    port, _ = await engines_at("127.0.0.2")
    names.records["A"] = ["127.0.0.2"]
    router = run_feeds(discovery={"dns": [source_of(names, port)]})
    await eventually(lambda: len(router.fleet.replicas) == 1)
    config = router.feeds._config
    router.feeds.configure(config.model_copy(update={"discovery": config.discovery.model_copy(update={"dns": ()})}))
    assert not router.fleet.replicas
    router.feeds.configure(config)
    await eventually(lambda: len(router.fleet.replicas) == 1)
    await asyncio.sleep(0)


def test_names_are_the_same_in_every_router():
    """In-flight figures are exchanged among routers by these names."""
    source = DnsSource(name="engines.team.svc", port=8000)
    assert replica_name(source, "10.0.0.1") == replica_name(source, "10.0.0.1") != replica_name(source, "10.0.0.2")
