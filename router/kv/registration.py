"""What an agent says about one unit, in the unit's lease: signed, since whoever can write a lease can receive prompts.

How it is signed is `router.kv.signing`.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from router.kv.signing import SealError, seal, unseal
from router.kv.text_files import MAX_FILES
from router.kv.wire import MAX_UNIT_CHARACTERS, WIRE_VERSION

MAX_BYTES = 1024 * 1024
_CONTEXT = b"warmroute registration\0"

_Name = Annotated[str, Meta(min_length=1, max_length=1024)]
_Count = Annotated[int, Meta(ge=0, le=2**62)]
_FileName = Annotated[str, Meta(min_length=1, max_length=256)]
_Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class RegistrationError(ValueError):
    """The lease is not believed; `str(error)` is the reason, fit for a log line."""


class RegisteredModel(msgspec.Struct, frozen=True):
    """One model that the engine serves.

    Attributes:
        name: Name that clients ask for.
        root: What is loaded under it: model path or id, or an adapter's path.
        parent: Base model of a LoRA adapter; None for a base model.
        max_model_len: Longest context in tokens, where the engine says so.
    """

    name: _Name
    root: Annotated[str, Meta(max_length=4096)]
    parent: _Name | None = None
    max_model_len: _Count | None = None


class Engine(msgspec.Struct, frozen=True):
    """Which engine runs there."""

    name: Annotated[str, Meta(max_length=256)] = ""
    version: Annotated[str, Meta(max_length=256)] = ""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One unit: a replica's data-parallel rank, what it serves and how its block hashes come about.

    Attributes:
        wire: Wire version that its agent writes.
        unit: `replica_id/rank`.
        replica_id: The engine process.
        rank: Data-parallel rank, from 0.
        ranks: How many ranks the replica has.
        url: Where routers send requests.
        models: Served models and adapters.
        algorithm: Hash algorithm as the engine names it, or "" where it is not known.
        seed: The engine's PYTHONHASHSEED where the agent was told; None otherwise.
        block_size: Tokens per block; 0 where it is not known.
        num_blocks: KV blocks of the unit's GPU tier, or None.
        trust: `exact`, `mapped`, `approximate` (no usable events) or `none` (no prefix cache).
        reason: Why trust is not exact, in words for an operator.
        epoch: Epoch at the time of writing.
        engine: Name and version.
        state: `ready` or `draining`.
        started: Unix time in seconds when the agent saw this life of the engine first.
        text_files: Files of the base models' tokenizer and chat templates that lie in Redis, as name to SHA-256
            (`router.kv.text_files`); empty where the agent publishes none, or is older than this field.
        whole: Whether the agent saw this life of the engine's cache from its beginning: what it did not announce, the
            engine does not hold. Unset where it did not, or is older than this field.
        group_sizes: Tokens a block of those cache groups whose blocks are larger than `block_size`, which is then what
            hashes are made of: a larger block bears the hash of its last piece. Unset where there are none.
        group_tails: Of those cache groups that keep ends of prefixes alone (sliding windows, Mamba states): the tokens
            before a prefix's end that the group must hold, and the tokens of its blocks. Unset where there are none, or
            the agent is older than this field.
    """

    wire: Annotated[int, Meta(ge=0, le=2**31)] = WIRE_VERSION
    unit: Annotated[str, Meta(min_length=1, max_length=MAX_UNIT_CHARACTERS)]
    replica_id: Annotated[str, Meta(min_length=1, max_length=MAX_UNIT_CHARACTERS)]
    rank: _Count = 0
    ranks: Annotated[int, Meta(ge=1, le=65_536)] = 1
    url: Annotated[str, Meta(max_length=2048)]
    models: Annotated[list[RegisteredModel], Meta(max_length=4096)] = msgspec.field(default_factory=list)
    algorithm: Annotated[str, Meta(max_length=64)] = ""
    seed: Annotated[str, Meta(max_length=256)] | None = None
    block_size: _Count = 0
    num_blocks: _Count | None = None
    trust: Literal["exact", "mapped", "approximate", "none"] = "approximate"
    reason: Annotated[str, Meta(max_length=1024)] | None = None
    epoch: _Count = 0
    engine: Engine = msgspec.field(default_factory=Engine)
    state: Literal["ready", "draining"] = "ready"
    started: Annotated[float, Meta(ge=0)] = 0.0
    text_files: Annotated[dict[_FileName, _Sha256], Meta(max_length=MAX_FILES)] = msgspec.field(default_factory=dict)
    whole: bool | msgspec.UnsetType = msgspec.UNSET
    group_sizes: Annotated[dict[_Count, _Count], Meta(max_length=32)] | msgspec.UnsetType = msgspec.UNSET
    group_tails: Annotated[dict[_Count, tuple[_Count, _Count]], Meta(max_length=32)] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        _check_url(self.url)


def encode(registration: Registration, secret: bytes | None) -> bytes:
    """Return the lease's bytes, signed where a secret is given."""
    return seal(msgspec.json.encode(registration), secret, _CONTEXT)


def decode(data: bytes, secret: bytes | None, expected_unit: str | None = None) -> Registration:
    """Return the registration, once its signature, version and every field hold.

    Args:
        data: The lease's bytes.
        secret: With one, a lease that is unsigned or signed with another secret is refused.
        expected_unit: The unit in whose key it was found; another one's lease is refused.

    Raises:
        RegistrationError: With the reason.
    """
    if len(data) > MAX_BYTES:
        raise RegistrationError("the lease is too long")
    try:
        payload = unseal(data, secret, _CONTEXT)
    except SealError as error:
        raise RegistrationError(f"the lease {error}") from error
    try:
        registration = msgspec.json.decode(payload, type=Registration)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RegistrationError(f"a field of the lease is wrong: {str(error)[:200]}") from error
    if abs(registration.wire - WIRE_VERSION) > 1:
        raise RegistrationError(f"wire version {registration.wire} can't be read by version {WIRE_VERSION}")
    if expected_unit is not None and registration.unit != expected_unit:
        raise RegistrationError("the lease belongs to another unit")
    return registration


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError("url is malformed") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("url is not http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("url carries credentials")
