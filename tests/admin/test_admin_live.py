"""The live view: what it tells, to whom, and that it ends."""

from __future__ import annotations

import asyncio
import json

from router.admin import live
from router.scheduling.candidate import Candidate
from router.scheduling.decision import Decision, Outcome


def decided(request_id: str, at: float, matched: int, available: int, **outcome) -> Decision:
    candidates = [Candidate("r0/0", "r0", 512, matched), Candidate("r1/0", "r1", 512, available)]
    made = Decision(
        request_id, at, "tiny", "cost", 512, 1.0, candidates, {}, "r0/0", 0.0, matched, matched, "cost", "exact"
    )
    if outcome:
        facts = {"prompt_tokens": 512, "cached_tokens": None, "ttft_s": None, **outcome}
        made.outcome = Outcome(200, None, completion_tokens=1, total_s=1.0, **facts)
    return made


async def events_of(answer):
    """Yield (event, data) as they come."""
    text = ""
    while True:
        text += (await answer.content.readany()).decode()
        *parts, text = text.split("\n\n")
        for part in parts:
            fields = dict(line.split(": ", 1) for line in part.splitlines())
            if "event" in fields:
                yield fields["event"], json.loads(fields["data"])


async def test_the_overview_has_each_replica_s_last_minute(admins, eventually):
    """Of requests that ended within 60 s: hit share, TTFT by bucket, failures; what is older is not in it."""
    admin = await admins()
    admin.announce("r0", 9001)
    now = (await admin.get("/admin/overview"))[1]["at"]
    admin.decisions.add(decided("old", now - 61, 0, 0, cached_tokens=500, ttft_s=0.01))
    admin.decisions.add(decided("q1", now - 5, 128, 128, cached_tokens=128, ttft_s=0.15))
    admin.decisions.add(decided("q2", now - 4, 0, 0, cached_tokens=0, ttft_s=0.15))
    admin.decisions.add(decided("q3", now - 3, 0, 0))

    async def window_with_requests():
        [row] = (await admin.get("/admin/overview"))[1]["replicas"]
        return row["window"] if row["window"]["requests"] else None

    window = await eventually(window_with_requests)
    assert (window["requests"], window["prompt_tokens"], window["cached_tokens"]) == (2, 1_024, 128)
    bounds = (await admin.get("/admin/history"))[1]["ttft_bounds_s"]
    assert window["ttft"][bounds.index(0.2)] == 2, "0.15 s is above 0.1 s and not above 0.2 s"


async def test_notable_decisions_are_the_slowest_and_the_least_expected(admins):
    """By time to first token; by tokens delivered otherwise than predicted, and by tokens matched elsewhere."""
    admin = await admins()
    admin.decisions.add(decided("fast", 1.0, 128, 128, cached_tokens=128, ttft_s=0.1))
    admin.decisions.add(decided("slow", 2.0, 128, 128, cached_tokens=128, ttft_s=3.0))
    admin.decisions.add(decided("stale", 3.0, 128, 128, cached_tokens=0, ttft_s=0.2))
    admin.decisions.add(decided("load", 4.0, 0, 480, cached_tokens=0, ttft_s=0.3))
    decisions = (await admin.get("/admin/overview"))[1]["decisions"]
    names = {kind: [row["request_id"] for row in rows] for kind, rows in decisions.items()}
    assert names["latest"] == ["load", "stale", "slow", "fast"]
    assert names["slowest"] == ["slow", "load", "stale", "fast"]
    assert names["surprising"] == ["load", "stale"]
    surprises = [row["surprise"] for row in decisions["surprising"]]
    assert surprises == ["480 more tokens matched elsewhere", "128 tokens fewer cached than predicted"]


async def test_warnings_name_the_replica_and_the_remedy(admins, eventually):
    """A replica that is down, predictions aside; the same fault of two replicas is one warning."""
    admin = await admins()
    admin.announce("r0", 9001)
    admin.announce("r1", 9002)
    assert (await admin.get("/admin/overview"))[1]["warnings"] == []
    for name in ("r0", "r1"):
        admin.fleet.mark_down(name, "fails its health probes")
    admin.reasons = ["fleet: none of 2 replicas is ready"]

    async def warnings():
        return (await admin.get("/admin/overview"))[1]["warnings"]

    found = {each["id"]: each for each in await eventually(warnings)}
    down = found["router.replicas"]
    assert (down["subjects"], down["detail"], down["status"]) == (["r0", "r1"], "fails its health probes", "wrong")
    assert down["remedy"] == "look at its engine's log; it comes back by itself"
    assert found["router.ready"]["detail"] == "fleet: none of 2 replicas is ready"


async def test_the_stream_begins_with_history_and_goes_on(admins, eventually):
    """`history`, then `overview` and `prefixes`; a second `overview` follows and tells of what changed."""
    admin = await admins()
    admin.announce("r0", 9001)
    async with admin.session.get(admin.url + "/admin/events") as answer:
        assert answer.content_type == "text/event-stream"
        heard = []
        async for event, data in events_of(answer):
            heard.append((event, data))
            overviews = [each for name, each in heard if name == "overview"]
            if len(overviews) == 1:
                admin.fleet.mark_down("r0", "gone")
            if overviews and overviews[-1]["replicas"][0]["state"] == "down":
                break
    names = [name for name, _ in heard]
    assert names[:2] == ["history", "overview"]
    assert "prefixes" in names


async def test_a_new_token_ends_the_streams_of_the_old_one(admins):
    """Who got in by a token that no longer holds is out within a second or so."""
    admin = await admins(admin={"token": "AT-777-token"})
    headers = {"authorization": "Bearer AT-777-token"}
    async with admin.session.get(admin.url + "/admin/events", headers=headers) as answer:
        await answer.content.readany()
        admin.view.config = admin.config.model_copy(
            update={"admin": admin.config.admin.model_copy(update={"token": "AT-888-token"})}
        )
        async with asyncio.timeout(10):
            while await answer.content.readany():
                pass


async def test_streams_are_bounded(admins, monkeypatch, eventually):
    """One more than may be is 503 with its own code, and a place is free again when one ends."""
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    admin = await admins()
    async with admin.session.get(admin.url + "/admin/events"):
        status, body = await admin.get("/admin/events")
        assert (status, body["error"]["code"]) == (503, "streams_busy")

    async def may_follow() -> bool:
        async with admin.session.get(admin.url + "/admin/events") as answer:
            return answer.status == 200

    await eventually(may_follow)


async def test_a_stop_ends_streams_at_once(admins):
    """A router that ends is not held up by who watches it."""
    admin = await admins()
    async with admin.session.get(admin.url + "/admin/events") as answer:
        await answer.content.readany()
        async with asyncio.timeout(5):
            await admin.runner.cleanup()


async def test_prefixes_have_pseudonyms_where_there_are_tenants(admins):
    """Their hashes could otherwise be used to find out which prompts tenants send."""
    tenants = [{"name": "a", "keys": ["sha256:" + "0" * 64], "isolated": False}]
    for settings, begins in (({}, "0"), ({"tenants": tenants, "admin": {"token": "AT-777-token"}}, "~")):
        admin = await admins(**settings)
        for _ in range(2):
            admin.chains.offer("tiny", 16, [1, 2, 3], 50)
        for _ in range(4_096):
            admin.chains.offer("tiny", 16, [1, 2, 3], 50)
        _, body = await admin.get("/admin/prefixes", authorization="Bearer AT-777-token")
        assert [view["hash"][0] for view in body["prefixes"]] == [begins]


async def test_a_wrong_number_of_prefixes_is_a_400(admins):
    """1 to 100."""
    admin = await admins()
    for limit in ("0", "101", "x", ""):
        status, body = await admin.get(f"/admin/prefixes?limit={limit}")
        assert (status, body["error"]["param"]) == (400, "limit")
