"""A router that takes note of nothing: no decisions, no ledger, no metrics, no access line.

`python -m loadtest.bench.proxy_silent router --config FILE` is `warmroute router` otherwise. For
`make bench-proxy ARGS=--observability`, which measures what taking note costs.
"""

from __future__ import annotations

import sys

from router.cli import main
from router.telemetry.recorder import Recorder

_NOTES = ("accepted", "prompt_read", "remote_tokenized", "placed", "retried", "queue_changed", "queue_left", "finished")


def _nothing(*_: object, **__: object) -> None:
    pass


if __name__ == "__main__":
    for name in _NOTES:
        setattr(Recorder, name, _nothing)
    sys.exit(main())
