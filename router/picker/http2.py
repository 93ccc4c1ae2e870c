"""HTTP/2 as a server speaks it to gateways, on a loop: connections, their streams, and who may send how much.

Libraries for it cost more than choosing an endpoint does: grpc.aio hands each message from thread to thread, some
1.7 ms of CPU for one request's four. Here a message is read, answered and written in one callback. Headers are the one
thing that takes a library (hpack), as their compression has state; those that are sent use none of it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from router.picker import frames
from router.picker.frames import BrokenError, Code, Setting
from router.picker.streams import Accept, Stream

_log = logging.getLogger(__name__)

_MAX_HEADERS_BYTES = 64 * 1024
_STREAM_WINDOW_BYTES = 2**20
_CONNECTION_WINDOW_BYTES = 2**30
_STREAM_TOLD_EVERY_BYTES = 32_768
_CONNECTION_TOLD_EVERY_BYTES = 2**28
_DRAIN_PING = b"draining"


class OpenConnections:
    """Those that are open.

    Attributes:
        emptied: Set while there is none.
    """

    def __init__(self) -> None:
        self.all: set[Connection] = set()
        self.emptied = asyncio.Event()
        self.emptied.set()

    def add(self, connection: Connection) -> None:
        """It was opened."""
        self.all.add(connection)
        self.emptied.clear()

    def discard(self, connection: Connection) -> None:
        """It was closed."""
        self.all.discard(connection)
        if not self.all:
            self.emptied.set()


class Connection(asyncio.Protocol):
    """One gateway's connection.

    Args:
        accept: Makes who takes what comes on a new stream.
        open_connections: This one is among them as long as it is open.
        max_streams: So many at once; one is one request, to its answer's end.

    Attributes:
        window_bytes: How much the peer takes on all its streams together.
        blocked: Streams that wait for a window, in the order that they came to do so.
    """

    def __init__(self, accept: Accept, open_connections: OpenConnections, max_streams: int) -> None:
        self._accept = accept
        self._open_connections = open_connections
        self._max_streams = max_streams
        import hpack  # only where it serves: what merely lists the commands does without the extra

        self._decoder, self._unreadable = hpack.Decoder(_MAX_HEADERS_BYTES), hpack.HPACKError
        self._streams: dict[int, Stream] = {}
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._out: list[bytes] = []
        self._is_reading = False
        self._begun = False
        self._headers: tuple[int, bool, bytes] | None = None
        self._last_stream = 0
        self._accepts_to = frames.MAX_WINDOW_BYTES
        self._consumed_bytes = 0
        self._is_draining = False
        self._first_stream_window = frames.FIRST_WINDOW_BYTES
        self.window_bytes = frames.FIRST_WINDOW_BYTES
        self.max_frame_bytes = frames.MAX_FRAME_BYTES
        self.blocked: dict[int, Stream] = {}

    # -- the transport ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport = cast("asyncio.Transport", transport)
        self._open_connections.add(self)
        told = {
            Setting.MAX_CONCURRENT_STREAMS: self._max_streams,
            Setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: _MAX_HEADERS_BYTES,
        }
        more_bytes = _CONNECTION_WINDOW_BYTES - frames.FIRST_WINDOW_BYTES
        transport.write(frames.settings(told) + frames.window_update(0, more_bytes))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`: every request on it is gone."""
        self._transport = None
        self._open_connections.discard(self)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            if stream.receiver is not None:
                stream.receiver.cancelled()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: who does not read is not read from, so answers to pings can't pile up."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`: read the frames that are whole, and write what they lead to at once."""
        self._is_reading = True
        try:
            self._read(self._rest + data if self._rest else data)
        except BrokenError as error:
            self._fail(error)
        except Exception:
            _log.exception("internal error on a gateway's connection")
            self._fail(BrokenError(Code.INTERNAL_ERROR, "internal error"))
        finally:
            self._is_reading = False
            self._flush()

    def write(self, data: bytes) -> None:
        """Write frames: those of one callback together."""
        self._out.append(data)
        if not self._is_reading:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            if self._transport is not None:
                self._transport.write(data)

    def _fail(self, error: BrokenError) -> None:
        _log.warning("a gateway's connection is closed: %s", error)
        self.write(frames.goaway(self._last_stream, error.code, str(error)))
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # -- leaving ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Have the gateway send nothing new here; the connection is closed when what runs has ended.

        The last stream is told in two steps, with a ping between them: what the gateway sent meanwhile is served.
        """
        if not self._is_draining:
            self._is_draining = True
            ping = frames.frame(frames.PING, 0, 0, _DRAIN_PING)
            self.write(frames.goaway(frames.MAX_WINDOW_BYTES, Code.NO_ERROR) + ping)

    def kill(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def answered(self, stream: Stream) -> None:
        """Everything was sent on a stream."""
        if not stream.has_ended:
            self.write(frames.reset(stream.stream_id, Code.NO_ERROR))
        self._forget(stream.stream_id)

    def _forget(self, stream_id: int) -> Stream | None:
        stream = self._streams.pop(stream_id, None)
        self.blocked.pop(stream_id, None)
        self._close_if_done()
        return stream

    def _close_if_done(self) -> None:
        if self._is_draining and not self._streams and self._accepts_to < frames.MAX_WINDOW_BYTES:
            self._flush()
            if self._transport is not None:
                self._transport.close()

    # -- frames -------------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        if not self._begun:
            preface = frames.PREFACE
            if data[: len(preface)] != preface[:size]:
                raise BrokenError(Code.PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
            if size < len(preface):
                self._rest = data
                return
            self._begun, at = True, len(preface)
        while size - at >= frames.HEAD_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > frames.MAX_FRAME_BYTES:
                raise BrokenError(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = at + frames.HEAD_BYTES + length
            if end > size:
                break
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big") & frames.MAX_WINDOW_BYTES
            self._take(data[at + 3], data[at + 4], stream_id, data[at + frames.HEAD_BYTES : end])
            at = end
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._headers is not None and (kind != frames.CONTINUATION or stream_id != self._headers[0]):
            raise BrokenError(Code.PROTOCOL_ERROR, "headers are interrupted")
        if kind == frames.DATA:
            self._take_data(flags, stream_id, payload)
        elif kind == frames.HEADERS:
            payload = frames.without_padding(flags, payload)
            if flags & frames.HAS_PRIORITY:
                payload = payload[5:]
            self._take_headers(stream_id, bool(flags & frames.END_STREAM), payload, bool(flags & frames.END_HEADERS))
        elif kind == frames.CONTINUATION:
            if self._headers is None:
                raise BrokenError(Code.PROTOCOL_ERROR, "no headers to continue")
            _, ends, begun = self._headers
            self._take_headers(stream_id, ends, begun + payload, bool(flags & frames.END_HEADERS))
        elif kind == frames.WINDOW_UPDATE:
            self._take_window(stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._take_reset(stream_id)
        elif kind == frames.SETTINGS:
            self._take_settings(flags, payload)
        elif kind == frames.PING:
            self._take_ping(flags, payload)
        elif kind == frames.PUSH_PROMISE:
            raise BrokenError(Code.PROTOCOL_ERROR, "clients push nothing")
        # PRIORITY, the peer's GOAWAY (it opens no more streams) and what nobody knows change nothing.

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._consumed_bytes += len(payload)
        if self._consumed_bytes >= _CONNECTION_TOLD_EVERY_BYTES:
            self.write(frames.window_update(0, self._consumed_bytes))
            self._consumed_bytes = 0
        stream = self._known(stream_id)
        if stream is None:
            return
        if stream.has_ended:
            raise BrokenError(Code.STREAM_CLOSED, "data after a stream's end")
        ends = bool(flags & frames.END_STREAM)
        stream.consumed_bytes += len(payload)
        if stream.consumed_bytes >= _STREAM_TOLD_EVERY_BYTES and not ends:
            self.write(frames.window_update(stream_id, stream.consumed_bytes))
            stream.consumed_bytes = 0
        stream.has_ended = ends
        receiver = stream.receiver
        if receiver is not None:
            receiver.data(frames.without_padding(flags, payload))
            if ends:
                receiver.ended()

    def _take_headers(self, stream_id: int, ends: bool, block: bytes, is_whole: bool) -> None:
        if len(block) > _MAX_HEADERS_BYTES:
            raise BrokenError(Code.ENHANCE_YOUR_CALM, "too many headers")
        if not is_whole:
            self._headers = (stream_id, ends, block)
            return
        self._headers = None
        try:
            headers = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except self._unreadable as error:
            raise BrokenError(Code.COMPRESSION_ERROR, f"headers can't be read: {error}") from error
        if stream_id <= self._last_stream:
            self._take_trailers(stream_id, ends)
            return
        if stream_id % 2 == 0:
            raise BrokenError(Code.PROTOCOL_ERROR, "clients' streams are odd")
        self._last_stream = stream_id
        if stream_id > self._accepts_to:
            return
        if len(self._streams) >= self._max_streams:
            self.write(frames.reset(stream_id, Code.REFUSED_STREAM))
            return
        stream = self._streams[stream_id] = Stream(self, stream_id, self._first_stream_window)
        stream.has_ended = ends
        stream.receiver = self._accept(stream, headers)
        if ends:
            stream.receiver.ended()

    def _take_trailers(self, stream_id: int, ends: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if stream.has_ended or not ends:
            raise BrokenError(Code.PROTOCOL_ERROR, "headers within a stream")
        stream.has_ended = True
        if stream.receiver is not None:
            stream.receiver.ended()

    def _take_window(self, stream_id: int, payload: bytes) -> None:
        more_bytes = int.from_bytes(payload, "big") & frames.MAX_WINDOW_BYTES
        if len(payload) != 4 or not more_bytes:
            raise BrokenError(Code.PROTOCOL_ERROR, "a window that does not grow")
        if stream_id:
            stream = self._known(stream_id)
            if stream is None:
                return
            stream.window_bytes += more_bytes
            self._check_window(stream.window_bytes)
            self._unblock([stream])
        else:
            self.window_bytes += more_bytes
            self._check_window(self.window_bytes)
            self._unblock(list(self.blocked.values()))

    def _check_window(self, window_bytes: int) -> None:
        if window_bytes > frames.MAX_WINDOW_BYTES:
            raise BrokenError(Code.FLOW_CONTROL_ERROR, "a window is too large")

    def _unblock(self, streams: list[Stream]) -> None:
        for stream in streams:
            if self.blocked.pop(stream.stream_id, None) is not None:
                stream.pump()

    def _take_reset(self, stream_id: int) -> None:
        if self._known(stream_id) is None:
            return
        stream = self._forget(stream_id)
        if stream is not None and stream.receiver is not None:
            stream.receiver.cancelled()

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for setting, value in frames.read_settings(payload):
            if setting == Setting.INITIAL_WINDOW_SIZE:
                self._check_window(value)
                grown_bytes = value - self._first_stream_window
                self._first_stream_window = value
                for stream in self._streams.values():
                    stream.window_bytes += grown_bytes
            elif setting == Setting.MAX_FRAME_SIZE:
                self.max_frame_bytes = max(value, frames.MAX_FRAME_BYTES)
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._unblock(list(self.blocked.values()))

    def _take_ping(self, flags: int, payload: bytes) -> None:
        if not flags & frames.ACK:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN_PING and self._is_draining:
            self._accepts_to = self._last_stream
            self.write(frames.goaway(self._last_stream, Code.NO_ERROR))
            self._close_if_done()

    def _known(self, stream_id: int) -> Stream | None:
        """Return an open stream; None: it is closed.

        Raises:
            BrokenError: It was never opened.
        """
        stream = self._streams.get(stream_id)
        if stream is None and (stream_id > self._last_stream or not stream_id):
            raise BrokenError(Code.PROTOCOL_ERROR, "a frame for a stream that was not opened")
        return stream
