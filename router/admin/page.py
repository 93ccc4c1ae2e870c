"""The dashboard's files: plain HTML, CSS and ES modules from the package, under a policy that lets nothing else run.

They hold no data and need no token; what they show they ask for with the token, in a header. No cookie is set, so no
other site's page can ask for anything in an operator's name.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from aiohttp import web

from router.admin.replies import HEADERS
from router.errors import PathNotFoundError

FOLDER = Path(__file__).parent / "dashboard"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
PAGE_HEADERS = {
    **HEADERS,
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


async def page(request: web.Request) -> web.Response:
    """Return the page; without the slash at its end, lead there."""
    if not request.path.endswith("/"):
        return web.Response(status=308, headers={**PAGE_HEADERS, "location": "admin/"})
    return _answer(request, "index.html")


async def asset(request: web.Request) -> web.Response:
    """Return one of the page's files."""
    name = request.match_info["file"]
    if name == "index.html" or name not in files():
        raise PathNotFoundError("the dashboard has no such file")
    return _answer(request, name)


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """Return by name each file's bytes and its entity tag. Names come from the folder, never from a request."""
    found = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            found[path.name] = (data, f'"{hashlib.sha256(data).hexdigest()[:20]}"')
    return found


def _answer(request: web.Request, name: str) -> web.Response:
    data, tag = files()[name]
    headers = {**PAGE_HEADERS, "etag": tag, "content-type": TYPES[Path(name).suffix]}
    if request.headers.get("if-none-match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=data, headers=headers)
