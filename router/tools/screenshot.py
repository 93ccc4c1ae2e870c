"""Take the README's pictures of the dashboard: the demo's fleet under the demo's traffic, light and dark.

python -m router.tools.screenshot docs/images        # `make screenshot`
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from router.tools.busy_fleet import busy_fleet
from router.tools.chromium import chromium

WIDTH, HEIGHT = 1480, 1500
USERS = 8


def main() -> int:
    """Take them; exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--replicas", type=int, default=4, help="engines (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=90.0, help="of traffic before (default: %(default)s)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with busy_fleet(args.replicas, users=USERS) as fleet, chromium() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(f"{fleet.router.http}/admin/")
        time.sleep(args.seconds)
        for scheme, name in (("light", "dashboard.png"), ("dark", "dashboard-dark.png")):
            page.emulate_media(color_scheme=scheme)
            time.sleep(1.5)
            page.screenshot(path=args.folder / name)
        page.get_by_role("tab", name="Most surprising").click()
        page.locator("#decisions-table tbody tr").first.click()
        page.wait_for_selector("#drawer .why")
        page.emulate_media(color_scheme="light")
        page.locator("#drawer").screenshot(path=args.folder / "decision.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
