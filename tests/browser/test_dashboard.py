"""`make test-browser`: the dashboard as an operator sees it, in the system's Chromium."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from router.tools.busy_fleet import busy_fleet
from router.tools.local_fleet import LocalFleet

pytestmark = pytest.mark.browser
TOKEN = "AT-777-token"
SEES_WITHIN_S = 3.0
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
}


@pytest.fixture
def fleet() -> Iterator[LocalFleet]:
    """Three engines with agents, under traffic."""
    with busy_fleet(3, users=4) as running:
        yield running


def rows(page: Page, table: str) -> int:
    return page.locator(f"#{table} tbody tr").count()


def test_it_is_live_and_explains_what_is_clicked(fleet, open_page):
    """Everything is filled in from a fleet that serves; a click on a decision tells why, by name and by figures."""
    page = open_page(f"{fleet.router.http}/admin/")
    expect(page.locator("#ready")).to_have_text("ready", timeout=20_000)
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#kpi-replicas .value")).to_have_text("3 / 3")
    expect(page.locator("#fleet-table tbody tr")).to_have_count(3)
    expect(page.locator("#fleet-table tbody tr").first).to_contain_text("exact")
    expect(page.locator("#kpi-hit .value")).to_have_text(re.compile(r"\d+\.\d%"), timeout=30_000)
    expect(page.locator("#chart-ttft path").first).to_be_attached(timeout=30_000)
    expect(page.locator("#prefixes-table tbody tr").first).to_be_visible(timeout=30_000)
    expect(page.locator("#chart-ledger .legend")).to_contain_text(re.compile(r"Delivered\d+%"), timeout=30_000)
    expect(page.locator("#reload")).to_contain_text("started")
    expect(page.locator("#config")).to_contain_text("placement")
    page.get_by_role("tab", name="Slowest").click()
    row = page.locator("#decisions-table tbody tr").first
    request_id = row.locator("th").get_attribute("title")
    row.click()
    expect(page.locator("#drawer-title")).to_contain_text(request_id)
    winner = fleet.get_json(f"/admin/decisions/{request_id}")["winner"]
    expect(page.locator("#drawer .why")).to_contain_text(winner.partition("/")[0])
    expect(page.locator("#drawer .terms")).to_have_count(3)
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).not_to_be_visible()


def test_a_killed_replica_is_shown_within_three_seconds(fleet, open_page):
    """From the signal to the engine until the page says that one is out, and which, and what to do."""
    page = open_page(f"{fleet.router.http}/admin/")
    expect(page.locator("#kpi-replicas .value")).to_have_text("3 / 3", timeout=20_000)
    victim = fleet.engines[1].child
    fleet.children.remove(victim)
    killed_s = time.monotonic()
    victim.kill()
    expect(page.locator("#kpi-replicas .value")).to_have_text("2 / 3", timeout=20_000)
    took_s = time.monotonic() - killed_s
    row = page.locator('#fleet-table tbody tr[data-key="r1"]')
    expect(row).to_have_attribute("data-tone", "bad")
    warning = page.locator('#warnings-list li[data-id="router.replicas"]')
    expect(warning).to_contain_text("r1")
    expect(warning).to_contain_text("Do: look at its engine's log")
    assert took_s < SEES_WITHIN_S


def test_a_body_is_explained_without_being_sent(fleet, open_page):
    """The example in the form is decided on; a body that is none gets the router's own words."""
    page = open_page(f"{fleet.router.http}/admin/")
    expect(page.locator("#fleet-table tbody tr")).to_have_count(3, timeout=20_000)
    page.keyboard.press("e")
    page.get_by_role("button", name="Explain", exact=True).last.click()
    expect(page.locator("#body-answer .why")).to_be_visible()
    expect(page.locator("#body-answer")).to_contain_text("not sent")
    open_page.expected.append("404")
    page.locator("#body-text").fill('{"model": "nobody-serves-this", "prompt": "x"}')
    page.locator("#drawer form button").click()
    expect(page.locator("#body-answer .error")).to_contain_text("nobody-serves-this")


def test_two_hundred_replicas_are_shown_and_found(large, open_page):
    """All rows and tiles, in time; sorted, filtered, and a change is drawn within two seconds."""
    router = large(200)
    began_s = time.monotonic()
    page = open_page(router.url)
    expect(page.locator("#fleet-table tbody tr")).to_have_count(200, timeout=15_000)
    expect(page.locator("#fleet-map i")).to_have_count(200)
    assert time.monotonic() - began_s < 10
    page.get_by_role("button", name="KV use").click()
    first = page.locator("#fleet-table tbody tr").first
    expect(first).to_contain_text("99%")
    expect(page.locator("#fleet-table th[aria-sort=descending]")).to_have_text(re.compile("KV use"))
    page.keyboard.press("/")
    page.keyboard.type("vllm-13")
    expect(page.locator("#fleet-table tbody tr")).to_have_count(10)
    page.locator("#fleet-filter").fill("")
    router.call(lambda: router.fleet.mark_down("vllm-007", "fails its health probes"))
    expect(page.locator('#fleet-map i[data-replica="vllm-007"]')).to_have_attribute("data-tone", "bad", timeout=2_000)
    strip = page.locator("#prefixes-table canvas").first
    expect(strip).to_have_attribute("aria-label", re.compile("of 200 replicas"), timeout=10_000)
    wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wide, "nothing sticks out of the page"


def test_drawing_two_hundred_replicas_costs_little(large, open_page):
    """Following the fleet takes the page less than a quarter of a core: a tab may stay open all day."""
    page = open_page(large(200).url)
    expect(page.locator("#fleet-table tbody tr")).to_have_count(200, timeout=15_000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def spent() -> tuple[float, float]:
        found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        return found["TaskDuration"], found["Timestamp"]

    before = spent()
    page.wait_for_timeout(5_000)
    after = spent()
    assert (after[0] - before[0]) / (after[1] - before[1]) < 0.25


def test_it_is_used_without_a_mouse(large, open_page):
    """Sections by number, rows by arrows, Enter opens, Escape closes and gives the focus back, tabs by arrows."""
    page = open_page(large(20).url)
    expect(page.locator("#fleet-table tbody tr")).to_have_count(20, timeout=15_000)
    page.keyboard.press("2")
    assert page.evaluate("document.activeElement.id") == "fleet"
    page.locator("#fleet-table tbody tr").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.rowIndex") == 3
    name = page.evaluate("document.activeElement.dataset.key")
    page.keyboard.press("Enter")
    expect(page.locator("#drawer-title")).to_have_text(f"Replica {name}")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.key") == name
    page.locator("#tab-latest").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-slowest")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.locator("#drawer-title")).to_have_text("Keyboard")


def test_pause_holds_still_and_theme_stays(large, open_page):
    """Held, a change is not drawn until it goes on; a theme that was chosen is there after a reload."""
    router = large(3)
    page = open_page(router.url)
    expect(page.locator("#kpi-replicas .value")).to_have_text("3 / 3", timeout=15_000)
    page.keyboard.press("p")
    router.call(lambda: router.fleet.mark_down("vllm-001", "gone"))
    page.wait_for_timeout(2_500)
    expect(page.locator("#kpi-replicas .value")).to_have_text("3 / 3")
    page.keyboard.press("p")
    expect(page.locator("#kpi-replicas .value")).to_have_text("2 / 3")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.keyboard.press("t")
    dark = page.evaluate(ground)
    assert light != dark
    page.reload()
    expect(page.locator("#fleet-table tbody tr")).to_have_count(3, timeout=15_000)
    assert page.evaluate(ground) == dark


def test_the_token_is_asked_for_and_kept_in_the_tab_alone(large, open_page):
    """A wrong one is refused in words; the right one lets in, also after a reload, leaves no cookie, and signs out."""
    router = large(3, TOKEN)
    open_page.expected.append("401")
    page = open_page(router.url)
    expect(page.locator("#sign-in")).to_be_visible(timeout=15_000)
    expect(page.locator("#fleet-table tbody tr")).to_have_count(0)
    page.locator("#token").fill("wrong-token")
    page.keyboard.press("Enter")
    expect(page.locator("#sign-in-error")).to_have_text("the admin token is missing or wrong")
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#fleet-table tbody tr")).to_have_count(3, timeout=15_000)
    assert page.context.cookies() == []
    assert TOKEN not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    expect(page.locator("#fleet-table tbody tr")).to_have_count(3, timeout=15_000)
    other = page.context.new_page()
    other.goto(router.url)
    expect(other.locator("#sign-in")).to_be_visible(timeout=15_000)
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#sign-in")).to_be_visible()


def test_a_router_that_is_gone_is_told(large, open_page):
    """What was seen stays, marked as old; nothing is hidden behind a spinner."""
    router = large(3)
    page = open_page(router.url)
    expect(page.locator("#live")).to_have_text("live", timeout=15_000)
    expect(page.locator("#fleet-table tbody tr")).to_have_count(3)
    open_page.expected.append("Failed to load resource")
    router.stop()
    expect(page.locator("#live")).to_contain_text("not live", timeout=15_000)
    expect(page.locator("#fleet-table tbody tr")).to_have_count(3)


def test_what_clients_send_is_text(large, open_page):
    """A name that is markup is shown as it is and does nothing."""
    router = large(1)
    name = '<img src=x onerror="document.title=`owned`">'
    router.call(lambda: router.chains.offer(name, 16, range(500, 503), 50))
    for _ in range(64):
        router.call(lambda: router.chains.offer(name, 16, range(500, 503), 50))
    page = open_page(router.url)
    expect(page.locator("#prefixes-table")).to_contain_text(name, timeout=15_000)
    assert page.locator("#prefixes-table img").count() == 0
    assert "owned" not in page.title()


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 800])
def test_axe_finds_nothing(large, open_page, color_scheme, width):
    """WCAG 2.2 AA and best practice: the page with a fault, an open drawer, and the sign-in."""
    router = large(30)
    router.call(lambda: router.fleet.mark_down("vllm-007", "fails its health probes"))
    page = open_page(router.url, width=width, color_scheme=color_scheme)
    expect(page.locator("#fleet-table tbody tr")).to_have_count(30, timeout=15_000)
    expect(page.locator("#prefixes-table tbody tr").first).to_be_visible(timeout=15_000)
    expect(page.locator("#warnings-list li").first).to_be_visible()
    assert _violations(page) == []
    page.locator("#fleet-table tbody tr").first.click()
    expect(page.locator("#drawer-title")).to_contain_text("Replica")
    assert _violations(page) == []
    page.keyboard.press("Escape")
    page.evaluate("document.getElementById('sign-in').showModal()")
    assert _violations(page) == []


def _violations(page: Page) -> list[str]:
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"][:3]]
