"""The endpoint picker: a gateway carries the traffic, and asks where each request goes (Envoy's external processing).

The configuration is the router's, with `picker` for the address. `listen` is not used; `admin.listen` is needed.
The ready line on standard output tells the addresses that are bound; logs go to standard error.
"""

from __future__ import annotations

import argparse

from router import supervisor
from router.picker.plane import PickerPlane, problems_of

configure = supervisor.configure


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    return supervisor.serve(args, PickerPlane, problems_of)
