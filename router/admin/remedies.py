"""What to do about what is wrong, by the ids that `warmroute doctor` and the dashboard's warnings share."""

from __future__ import annotations

START_AGENT = "start an agent beside it: warmroute agent --engine-url {url} --redis redis://HOST:PORT/0"
PREDICTIONS = "scheme.predictions"
PROOF = "scheme.proof"
READY = "router.ready"
REPLICAS = "router.replicas"
TOKEN_DETAILS = "usage.token_details"  # noqa: S105  # the id of a check

REMEDIES = {
    READY: "remove the reasons named",
    REPLICAS: "look at its engine's log; it comes back by itself",
    PROOF: "start the engine with --prefix-caching-hash-algo sha256_cbor, and its agent with --hash-seed where "
    "PYTHONHASHSEED is set",
    PREDICTIONS: "the checks of block size, tokenizer and template tell which of them differs",
    TOKEN_DETAILS: "start the engine with --enable-prompt-tokens-details",
}
