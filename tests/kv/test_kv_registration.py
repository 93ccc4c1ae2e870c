"""Leases: signed, checked field by field, and refused with a reason."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv import registration as reg
from router.kv.registration import Engine, RegisteredModel, Registration, RegistrationError
from router.kv.wire import WIRE_VERSION

SECRET = b"0123456789abcdef"
LEASE = Registration(
    unit="r0/1",
    replica_id="r0",
    rank=1,
    ranks=2,
    url="http://10.0.0.7:8000",
    models=[RegisteredModel("tiny", "/models/tiny", None, 2048), RegisteredModel("sql", "/loras/sql", "tiny")],
    algorithm="sha256_cbor",
    seed="0",
    block_size=16,
    num_blocks=512,
    trust="exact",
    epoch=1_700_000_000_000_000,
    engine=Engine("vllm", "0.32.0"),
    started=1.7e9,
)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_registration_round_trips(secret: bytes | None) -> None:
    """Signed or not, decoding gives back every field."""
    assert reg.decode(reg.encode(LEASE, secret), secret) == LEASE


def test_tampering_is_refused() -> None:
    """Another address under an old signature is not believed."""
    envelope = json.loads(reg.encode(LEASE, SECRET))
    envelope["payload"] = envelope["payload"].replace("10.0.0.7", "10.6.6.6")
    with pytest.raises(RegistrationError, match="signature"):
        reg.decode(json.dumps(envelope).encode(), SECRET)


def test_another_secret_is_refused() -> None:
    """A lease signed with another secret is not believed."""
    with pytest.raises(RegistrationError, match="signature"):
        reg.decode(reg.encode(LEASE, b"another secret!!"), SECRET)


@pytest.mark.parametrize("signature", ["é" * 64, "", "00", "\ud800"])
def test_a_strange_signature_is_refused(signature: str) -> None:
    """A signature that is no hex digest is refused like any other."""
    envelope = {"payload": json.loads(reg.encode(LEASE, None))["payload"], "signature": signature}
    with pytest.raises(RegistrationError):
        reg.decode(json.dumps(envelope).encode(), SECRET)


def test_unsigned_is_refused_where_a_secret_is_set() -> None:
    """With a secret on the reader's side, an unsigned lease is refused and says so."""
    with pytest.raises(RegistrationError, match="not signed"):
        reg.decode(reg.encode(LEASE, None), SECRET)


def test_a_lease_in_another_units_key_is_refused() -> None:
    """A genuine lease copied into another unit's key does not redirect that unit."""
    with pytest.raises(RegistrationError, match="another unit"):
        reg.decode(reg.encode(LEASE, SECRET), SECRET, expected_unit="r1/0")


@pytest.mark.parametrize("url", ["", "ftp://h:1", "http://", "//h:1", "http://u:p@h:1", "http://[::1", "http://h:x"])
def test_a_wrong_address_is_refused(url: str) -> None:
    """An address that is no plain http(s) URL is refused."""
    fields = {**msgspec.to_builtins(LEASE), "url": url}
    data = json.dumps({"payload": json.dumps(fields)}).encode()
    with pytest.raises(RegistrationError):
        reg.decode(data, None)


@pytest.mark.parametrize(("wire", "read"), [(WIRE_VERSION + 1, True), (WIRE_VERSION + 2, False)])
def test_the_version_rule_holds_for_leases(wire: int, read: bool) -> None:
    """One version apart is read (new fields ignored), two are refused."""
    fields = {**msgspec.to_builtins(LEASE), "wire": wire, "a_new_field": 1}
    data = json.dumps({"payload": json.dumps(fields)}).encode()
    if read:
        assert reg.decode(data, None).url == LEASE.url
    else:
        with pytest.raises(RegistrationError, match="version"):
            reg.decode(data, None)


def test_a_lease_from_before_tokenizers_were_published_is_read() -> None:
    """An agent without the field publishes none; all else of its lease holds."""
    fields = msgspec.to_builtins(LEASE)
    del fields["text_files"]
    data = json.dumps({"payload": json.dumps(fields)}).encode()
    assert reg.decode(data, None) == msgspec.structs.replace(LEASE, text_files={})


def test_a_reader_from_before_tokenizers_were_published_reads_a_lease() -> None:
    """It knows every field but the new one, and reads them as they were; the signature covers the new one too."""
    newer = ("text_files", "whole", "group_sizes", "group_tails")
    fields = [field for field in msgspec.structs.fields(Registration) if field.name not in newer]
    earlier = msgspec.defstruct("Earlier", [(field.name, field.type) for field in fields], kw_only=True)
    data = reg.encode(msgspec.structs.replace(LEASE, text_files={"tokenizer.json": "0" * 64}), SECRET)
    read = msgspec.json.decode(json.loads(data)["payload"], type=earlier)
    assert all(getattr(read, field.name) == getattr(LEASE, field.name) for field in fields)
    envelope = json.loads(data)
    envelope["payload"] = envelope["payload"].replace("0" * 64, "1" * 64)
    with pytest.raises(RegistrationError, match="signature"):
        reg.decode(json.dumps(envelope).encode(), SECRET)


def test_group_sizes_and_wholeness_are_told_and_left_out_where_there_is_nothing_to_tell() -> None:
    """A lease without them is as one of an agent from before they were told."""
    told = msgspec.structs.replace(LEASE, whole=True, group_sizes={1: 64, 3: 128})
    assert reg.decode(reg.encode(told, SECRET), SECRET) == told
    assert b"group_sizes" not in reg.encode(LEASE, SECRET)
    assert b"whole" not in reg.encode(LEASE, SECRET)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "../" + "0" * 61, "0" * 64 + "\n"])
def test_what_is_no_hash_is_refused(digest: str) -> None:
    """The hash becomes part of a key's name."""
    fields = {**msgspec.to_builtins(LEASE), "text_files": {"tokenizer.json": digest}}
    with pytest.raises(RegistrationError):
        reg.decode(json.dumps({"payload": json.dumps(fields)}).encode(), None)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_rubbish_raises_nothing_but_registration_error(data: bytes) -> None:
    """No bytes raise anything else, as envelope or as payload."""
    for lease in (data, json.dumps({"payload": data.decode(errors="replace")}).encode()):
        with pytest.raises(RegistrationError):
            reg.decode(lease, None)


def test_a_lease_is_bounded() -> None:
    """A lease over a megabyte is refused before it is parsed."""
    with pytest.raises(RegistrationError, match="too long"):
        reg.decode(b" " * (reg.MAX_BYTES + 1), None)
