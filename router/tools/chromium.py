"""The system's Chromium under Playwright, for pictures and tests of pages. Needs the extra `browser`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

ARGUMENTS = ("--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage")
INSTALL = "no chromium on PATH: install it (Debian: apt install chromium), or name it in CHROMIUM"


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser; Playwright's `Browser`.

    Raises:
        FileNotFoundError: There is none.
    """
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise FileNotFoundError(INSTALL)
    # Its own sandbox does not work for root, as in a container of CI.
    sandbox = os.getuid() != 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=[*ARGUMENTS], chromium_sandbox=sandbox, handle_sigint=False
        )
        try:
            yield browser
        finally:
            browser.close()
