"""Record what this version says through Redis: `python -m tests.golden.make_wire` writes tests/golden/wire/vN.json.

Run it once for each version of the wire format, before the version is raised: the file of an earlier version is what
its agents and routers write, and is never written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from router.kv import doubts, drains, registration, router_load, wire
from router.kv.doubts import Doubt
from router.kv.drains import Drain
from router.kv.registration import Engine, RegisteredModel, Registration
from router.kv.router_load import Row
from router.kv.wire import BlocksBatch, Change, Heartbeat, Snapshot, StateChange

UNIT, EPOCH = "pod-7/1", 1_764_500_000_000_000
SECRET = b"a secret of sixteen bytes or more"
HASHES = (0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF)

MESSAGES: dict[str, wire.Message] = {
    "stored": BlocksBatch(UNIT, EPOCH, 7, (Change("stored", 0, 0, 0, HASHES), Change("stored", 1, 3, 1, HASHES[:1]))),
    "removed and cleared": BlocksBatch(UNIT, EPOCH, 8, (Change("removed", 2, 0, 0, HASHES[2:]), Change("cleared"))),
    "heartbeat": Heartbeat(UNIT, EPOCH, 8, 3, 2, 0.25),
    "heartbeat of unknown load": Heartbeat(UNIT, EPOCH, 8),
    "heartbeat with cache counters": Heartbeat(UNIT, EPOCH, 9, 3, 2, 0.25, 0.0, 2**40, 2**39),
    "ready": StateChange(UNIT, EPOCH, "ready"),
    "draining": StateChange(UNIT, EPOCH, "draining"),
    "gone": StateChange(UNIT, EPOCH, "gone"),
    "stored, told late": BlocksBatch(UNIT, EPOCH, 9, (Change("stored", 0, 0, 0, HASHES),), 1.25),
    "heartbeat of one that is behind": Heartbeat(UNIT, EPOCH, 9, 3, 2, 0.25, 8.0),
}
"""Version 1 had neither of the last two."""
SNAPSHOT = Snapshot(UNIT, EPOCH, 8, "1764500000000-3", [(0, 0, 0, range(300)), (1, 3, 1, HASHES)])
SNAPSHOT_CHUNK_BYTES = 1024
LEASE = Registration(
    wire=wire.WIRE_VERSION,
    unit=UNIT,
    replica_id="pod-7",
    rank=1,
    ranks=2,
    url="http://10.0.0.7:8000",
    models=[
        RegisteredModel("tiny", "/models/tiny", None, 2048),
        RegisteredModel("sql", "/loras/sql", "tiny", None),
    ],
    algorithm="sha256_cbor",
    seed="42",
    block_size=16,
    num_blocks=1000,
    trust="exact",
    reason=None,
    epoch=EPOCH,
    engine=Engine("vllm", "0.32.0"),
    state="draining",
    started=1764500000.5,
    text_files={"tokenizer.json": "a" * 64},
)
DRAIN = Drain("pod-7", 1_764_500_600.0)
LOAD = ("0123456789abcdef/0-01234567", [Row("pod-7/0", 3, 4096.0, 0.25, 123_456.0), Row(UNIT, 1, 0.0)])
DOUBT = Doubt(EPOCH, 1.5, HASHES)


def recorded() -> dict[str, Any]:
    """Return everything as hex, by name."""
    return {
        "version": wire.WIRE_VERSION,
        "messages": {name: wire.encode(message).hex() for name, message in MESSAGES.items()},
        "snapshot": [chunk.hex() for chunk in SNAPSHOT.encode_chunks(SNAPSHOT_CHUNK_BYTES)],
        "lease": registration.encode(LEASE, None).hex(),
        "signed lease": registration.encode(LEASE, SECRET).hex(),
        "drain": drains.encode(DRAIN, SECRET).hex(),
        "router load": router_load.encode(*LOAD).hex(),
        "doubt": doubts.encode(DOUBT).hex(),
    }


if __name__ == "__main__":
    path = Path(__file__).parent / "wire" / f"v{wire.WIRE_VERSION}.json"
    path.write_text(json.dumps(recorded(), indent=1) + "\n", encoding="utf-8")
