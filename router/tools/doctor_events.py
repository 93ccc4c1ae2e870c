"""Listens to one rank of an engine: its event socket, a probe of ours as it shows up there, and its replay.

The same pieces as the agent's read what comes: adapter and proof. So what is found here is what an agent would find.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from replica.agent.adapters.vllm import VllmAdapter
from replica.agent.proof import SchemeProof
from router.kv.events import BlockStored
from router.tools.doctor_heard import Heard, Replay, note_forms, note_probe

CONNECT_S = 3.0
SILENCE_S = 5.0
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_BATCHES = 100_000
_END = b"\xff" * 8


def listen(
    events: str, replay: str | None, proof: SchemeProof, probe: list[int], send_probe: Callable[[], str]
) -> Heard:
    """Subscribe, send the probe, and follow what the engine announces until its root block is judged.

    Args:
        events: Address of the PUB socket.
        replay: Address of the ROUTER socket, or None.
        proof: The schemes that the engine may have.
        probe: Token ids of the probe; nobody sent them before.
        send_probe: Sends it to this rank; returns what went wrong, or "".
    """
    heard = Heard(events)
    with zmq.Context() as context:
        try:
            _subscribe(context, heard, proof, probe, send_probe)
            if replay is not None:
                heard.replay = ask_replay(context, replay)
        except zmq.ZMQError as error:
            heard.error = f"{error} ({events})"
    return heard


def _subscribe(
    context: zmq.Context[Any], heard: Heard, proof: SchemeProof, probe: list[int], send_probe: Callable[[], str]
) -> None:
    socket = context.socket(zmq.SUB)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(heard.address)
        heard.connected = bool(monitor.poll(int(CONNECT_S * 1000)))
        if not heard.connected:
            return
        recv_monitor_message(monitor)
        proof.expect_probe(probe)
        heard.error = _probe_until_subscribed(socket, heard, proof, probe, send_probe)
        heard.proof, heard.reason = proof.state, proof.reason
        if proof.scheme is not None:
            seed = "no seed" if proof.scheme.seed is None else "the seed given"
            heard.scheme = f"{proof.scheme.algorithm.value}, {proof.scheme.block_size} tokens a block, {seed}"
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)


def _probe_until_subscribed(
    socket: zmq.Socket[bytes], heard: Heard, proof: SchemeProof, probe: list[int], send_probe: Callable[[], str]
) -> str:
    # The publisher learns of a subscription a moment after the handshake. The events of a probe that came before that
    # are not sent to us, so a fresh one would be needed: instead the subscription is given that moment.
    socket.poll(200)
    error = send_probe()
    if error:
        return error
    heard.probe_sent = True
    adapter = VllmAdapter()
    deadline_s = time.monotonic() + SILENCE_S
    while not heard.probe_seen and (left_s := deadline_s - time.monotonic()) > 0:
        if not socket.poll(int(left_s * 1000)):
            break
        frames = socket.recv_multipart()
        if len(frames) != 3 or len(frames[1]) != 8:
            heard.skipped["malformed_frame"] = heard.skipped.get("malformed_frame", 0) + 1
            continue
        heard.batches += 1
        note_forms(frames[2], heard)
        batch = adapter.read(frames[2])
        for reason, count in batch.skipped.items():
            heard.skipped[reason] = heard.skipped.get(reason, 0) + count
        for event in batch.events:
            if isinstance(event, BlockStored):
                proof.see(event)
                note_probe(event, probe, heard)
    return ""


def ask_replay(context: zmq.Context[Any], address: str) -> Replay:
    """Ask a replay socket for everything that it has. A DEALER: a REQ socket would get one batch only."""
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(address)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        batches = 0
        while batches < MAX_BATCHES:
            if not socket.poll(int(CONNECT_S * 1000)):
                return Replay(False, batches, f"{address} fell silent after {batches} batches")
            frames = socket.recv_multipart()
            if len(frames) != 4 or len(frames[2]) != 8:
                return Replay(False, batches, f"{address} answered something else than a batch")
            if frames[2] == _END:
                return Replay(True, batches)
            batches += 1
        return Replay(False, batches, f"{address} did not end after {batches} batches")
    finally:
        socket.close(linger=0)
