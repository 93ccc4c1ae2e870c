"""Which paths clients may use: an allow-list, matched after normalisation.

Engines serve more than inference: cache resets, pauses, weight updates, adapter loading. A client must not reach those
by spelling a path so that the router and the engine read it differently. So what was matched is what is sent: the
engine gets the list's own spelling of the path, and the client's query untouched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_AUTHORITY = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
ADMIN_PATHS = ("/healthz", "/readyz", "/metrics", "/admin")


def normalise(path: bytes) -> str | None:
    """Return the one spelling of a path: percent escapes decoded once, slashes merged, dots resolved, none trailing.

    None when it holds what no path of ours holds: bytes outside printable ASCII, a backslash, a second escape, `;`.
    """
    decoded = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), path)
    if not decoded.startswith(b"/") or any(byte <= 0x20 or byte >= 0x7F or byte in b"%\\;#?" for byte in decoded):
        return None
    parts: list[str] = []
    for part in decoded.decode("ascii").split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Split a request target (origin or absolute form) into its raw path and its query with the `?`."""
    if not target.startswith(b"/"):
        match = _AUTHORITY.match(target)
        if match is not None:
            target = target[match.end() :]
            if not target.startswith(b"/"):
                target = b"/" + target
    path, mark, query = target.partition(b"?")
    return path, mark + query


class AllowedPaths:
    """The allow-list."""

    def __init__(self, paths: Iterable[str]) -> None:
        allowed = {normalise(path.encode("utf-8")) or path for path in paths}
        self._allowed = frozenset(allowed)
        self._as_written = {path.encode("utf-8"): path for path in allowed}

    def match(self, raw_path: bytes) -> str | None:
        """Return the list's spelling of a raw path, or None when it is not in the list."""
        known = self._as_written.get(raw_path)
        if known is not None:
            return known
        path = normalise(raw_path)
        return path if path in self._allowed else None


def is_admin(raw_path: bytes) -> bool:
    """Tell whether a raw path belongs to health, metrics or admin."""
    if not raw_path.startswith((b"/healthz", b"/readyz", b"/metrics", b"/admin")):
        return False
    path = raw_path.decode("latin-1")
    return path in ADMIN_PATHS or path.startswith("/admin/")
