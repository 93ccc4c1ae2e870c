"""The dashboard's files: what is served, and under which policy."""

from __future__ import annotations

import re

from router.admin.page import FOLDER


async def test_the_page_lets_nothing_run_but_its_own_files(admins):
    """No inline script or style, no other site, no frame around it; `/admin` leads there."""
    admin = await admins()
    async with admin.session.get(admin.url + "/admin") as answer:
        assert answer.url.path == "/admin/"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
        assert policy["frame-ancestors"] == "'none'"
        html = await answer.text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?://", html)


async def test_every_file_that_the_page_names_is_served(admins):
    """With a type that browsers take under nosniff, and an entity tag that saves sending it again."""
    admin = await admins()
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'assets/([\w.]+)"', html))
    for script in FOLDER.glob("*.js"):
        named |= set(re.findall(r'from "\./([\w.]+)"', script.read_text(encoding="utf-8")))
    assert named == {path.name for path in FOLDER.iterdir()} - {"index.html"}, "nothing lies there unused"
    for name in named:
        async with admin.session.get(f"{admin.url}/admin/assets/{name}") as answer:
            assert answer.status == 200, name
            assert answer.headers["x-content-type-options"] == "nosniff"
            tag = answer.headers["etag"]
        again = {"if-none-match": tag}
        async with admin.session.get(f"{admin.url}/admin/assets/{name}", headers=again) as answer:
            assert answer.status == 304


async def test_only_the_dashboard_s_files_are_served(admins):
    """Neither what lies elsewhere nor what is not there."""
    admin = await admins()
    for name in ("nothing.js", "..%2fpage.py", "%2e%2e/page.py", "index.html", "../page.py"):
        async with admin.session.get(f"{admin.url}/admin/assets/{name}") as answer:
            assert answer.status == 404, name


async def test_the_page_needs_no_token_and_holds_no_data(admins):
    """It is the same for everyone; what it shows is asked for with the token."""
    admin = await admins(admin={"token": "AT-777-token"})
    async with admin.session.get(admin.url + "/admin/") as answer:
        assert (answer.status, await answer.read()) == (200, (FOLDER / "index.html").read_bytes())
    for path in ("/admin/overview", "/admin/history", "/admin/events", "/admin/prefixes"):
        assert (await admin.get(path))[0] == 401
