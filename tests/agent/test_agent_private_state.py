"""What an agent keeps for the next one: whole or not at all, for nobody else, and never in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.private_state import KEPT_S, Saved, StateFile
from replica.agent.proof import SchemeProof
from replica.agent.unit import UnitState
from router.kv.schemes import HashAlgorithm

URL = "http://engine:8000"


def heard(recording: Any, algorithm: str | None, *, maps: bool = False) -> UnitState:
    state = UnitState("r0/0", VllmAdapter(), SchemeProof(algorithm, None, None), None, maps=maps)
    for _, sequence, payload in recording:
        state.accept(sequence, payload)
    return state


def layers(state: UnitState) -> Any:
    return sorted((tier, group, kind, sorted(hashes)) for tier, group, kind, hashes in state.layers())


@pytest.mark.parametrize("algorithm", [None, "unknown"], ids=["exact", "mapped"])
@pytest.mark.parametrize("name", ["eviction_int_block32", "sha256_cbor_bytes_block16", "hybrid_groups"])
def test_what_is_kept_comes_back(name: str, algorithm: str | None, recordings, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Blocks, copies, names and the proven scheme of the real engine's recordings; and it goes on as it would have."""
    frames = recordings[name]
    half = len(frames) // 2
    whole = heard(frames, algorithm, maps=True)
    first = heard(frames[:half], algorithm, maps=True)
    file = StateFile(tmp_path, "r0/0", URL)
    saved = first.saved(URL)
    assert saved is not None
    file.write(saved)
    second = UnitState("r0/0", VllmAdapter(), SchemeProof(algorithm, None, None), None, maps=True)
    read = StateFile(tmp_path, "r0/0", URL).read()
    assert read == saved
    second.offer(read)
    second.absorb(0, [(sequence, payload) for _, sequence, payload in frames[half - 1 : half]])
    assert layers(second) == layers(first)
    assert second.proof.scheme == first.proof.scheme
    assert (second.group_sizes, second.group_tails) == (first.group_sizes, first.group_tails)
    assert (second.proof.scheme is None) is (algorithm is not None)
    for _, sequence, payload in frames[half:]:
        second.accept(sequence, payload)
    assert layers(second) == layers(whole)


def test_a_scheme_that_can_not_be_is_not_taken_over(recordings) -> None:  # type: ignore[no-untyped-def]
    """The operator names another seed now: what was proven without it is to be proven anew."""
    first = heard(recordings["sha256_cbor_bytes_block16"], None)
    assert first.proof.scheme is not None
    assert first.proof.scheme.algorithm is HashAlgorithm.SHA256_CBOR
    proof = SchemeProof(None, None, "42")
    proof.restore(first.proof.scheme)
    assert (proof.state, proof.scheme) == ("open", None)


def test_nothing_damaged_is_believed(recordings, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Cut, of another version, rubbish, of another unit, or with layers that make no sense: as if it were not there."""
    frames = recordings["eviction_int_block32"]
    saved = heard(frames, None).saved(URL)
    assert saved is not None
    file = StateFile(tmp_path, "r0/0", URL)
    assert file.read() is None
    file.write(saved)
    [path] = tmp_path.glob("*.state")
    good = path.read_bytes()
    for data in (good[:-5], b"", b"\xff" * 40, msgspec.msgpack.encode([9, *msgspec.msgpack.decode(good)[1:]])):
        path.write_bytes(data)
        assert StateFile(tmp_path, "r0/0", URL).read() is None
    saved.layers[0].blocks = saved.layers[0].blocks[:-3]
    for odd in (saved, msgspec.structs.replace(saved, unit="r1/0")):
        state = UnitState("r0/0", VllmAdapter(), SchemeProof(None, None, None), None)
        state.offer(odd)
        state.absorb(0, [(sequence, payload) for _, sequence, payload in frames[-1:]])
        assert state.tally.restored == 0


def test_how_groups_match_is_kept_and_no_new_life_has_it(recordings, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The hybrid model's window is known before its next event; an earlier agent's state lacks it and is read too. An
    engine that begins anew may serve another model."""
    frames = recordings["hybrid_groups"]
    first = heard(frames, None)
    assert first.group_tails
    saved = first.saved(URL)
    assert saved is not None
    data = msgspec.msgpack.encode(saved)
    for kept, tails in ((data, first.group_tails), (msgspec.msgpack.encode(msgspec.msgpack.decode(data)[:10]), {})):
        second = UnitState("r0/0", VllmAdapter(), SchemeProof(None, None, None), None)
        second.offer(msgspec.msgpack.decode(kept, type=Saved))
        second.absorb(0, [(sequence, payload) for _, sequence, payload in frames[-1:]])
        assert second.tally.restored == 1
        assert second.group_tails == tails
    for end in (first.restart, first.detach):
        first.group_tails = {1: (24, 16)}
        first.group_sizes = {0: 32}
        end()
        assert (first.group_sizes, first.group_tails) == ({}, {})


def test_it_is_nobody_elses(recordings, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The folder is made for its user alone; one that others can write to is not used, nor is a link."""
    saved = heard(recordings["eviction_int_block32"], None).saved(URL)
    assert saved is not None
    folder = tmp_path / "state"
    StateFile(folder, "r0/0", URL).write(saved)
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(folder)
    assert StateFile(tmp_path / "link", "r0/0", URL).read() is None
    folder.chmod(0o777)
    assert StateFile(folder, "r0/0", URL).read() is None
    StateFile(folder, "r1/0", URL).write(saved)
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_can_not_be_made_ends_nothing(recordings, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A file stands in its place: said once, and the agent goes on."""
    (tmp_path / "state").write_text("")
    saved = heard(recordings["eviction_int_block32"], None).saved(URL)
    assert saved is not None
    file = StateFile(tmp_path / "state", "r0/0", URL)
    file.write(saved)
    assert file.read() is None


def test_what_is_old_is_taken_away(recordings, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """States of units that nobody wrote for a week."""
    saved = heard(recordings["eviction_int_block32"], None).saved(URL)
    assert isinstance(saved, Saved)
    StateFile(tmp_path, "old/0", URL).write(saved)
    [old] = tmp_path.glob("*.state")
    os.utime(old, (time.time() - KEPT_S - 60,) * 2)
    StateFile(tmp_path, "r0/0", URL).write(saved)
    assert not old.exists()
    assert len(list(tmp_path.glob("*.state"))) == 1
