"""How much the peer may send: the windows of the connection and of its streams. Pure.

Credit comes back when the application has *consumed* a message, not when it was received: a
thousand streams that nobody reads would otherwise fill their windows in memory. But a message that
isn't whole can't be consumed, so:

* On the connection, the parts of such messages hold no credit. Otherwise, 1. sixteen streams each
  send the first MiB of 2 MiB, 2. the connection's 16 MiB are used up, 3. none ever gets whole.
  Nor do whole messages, as long as the budget of unread bytes lasts (`unread`).
* On its stream, a message up to the window's size holds its credit: it fits. A larger one is given
  credit as it comes, if the connection's large messages are together below `assembly_bytes_max`, or
  if it is the only one. Others wait for their turn, with a window's worth in memory.

A stream is given credit when it has half a window to get, or less left than its message lacks.

All this bounds each stream, and a peer may open thousands. So the beginnings of messages have a
budget of their own (`unfinished`), for the connection and for all connections of a server: who
would pass the first has the call refused; the server ends the calls that pass the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from ringmq_wire.codes import Code, ErrorCode, RpcStatus
from ringmq_wire.errors import CallRefusal, ConnectionFault, StreamFault
from ringmq_wire.frames import MESSAGE_PREFIX, MESSAGE_PREFIX_BYTES, window_update
from ringmq_wire.options import WINDOW_BYTES_INITIAL, WireOptions
from ringmq_wire.streams import WireStream
from ringmq_wire.unfinished import UnfinishedBytes
from ringmq_wire.unread import UnreadBytes


class Inflow:
    """See the module. `send` takes the WINDOW_UPDATEs."""

    def __init__(
        self,
        options: WireOptions,
        send: Callable[[bytes], None],
        unfinished: UnfinishedBytes,
        unread: UnreadBytes,
    ) -> None:
        self._stream_window = options.stream_window_bytes
        self._window_max = options.connection_window_bytes
        self._assembly_max = options.assembly_bytes_max
        self._send = send
        self.unfinished = unfinished
        self._unread = unread
        self._window = WINDOW_BYTES_INITIAL
        # Whole messages of all streams that aren't consumed.
        self.held_bytes = 0
        # The sizes of large messages that are given credit, and the streams that wait for that.
        self.assembling_bytes = 0
        self._waiting: deque[WireStream] = deque()

    def expect(self, size: int) -> None:
        """A DATA frame has begun, with so many bytes of data or padding, on whatever stream.

        Windows count them as they come (`came`): what is still to come of the frame would look
        like credit that is due, and be given a second time.
        """
        if size > self._window:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR,
                f"{size} bytes come, the connection's window has {self._window}",
            )

    def expect_on(self, stream: WireStream, size: int) -> None:
        if size > stream.receive_window:
            raise StreamFault(
                ErrorCode.FLOW_CONTROL_ERROR,
                f"{size} bytes come, the window of {self._stream_window} "
                f"has {stream.receive_window}",
            )

    def came(self, size: int) -> None:
        self._window -= size

    def take_whole(
        self, stream: WireStream, data: bytes, at: int, stop: int, messages: list[bytes]
    ) -> bool:
        """A DATA frame with nothing but whole messages, of a stream that is between two: appends
        them, and counts them as `expect`, `expect_on`, `came`, `Reassembly.feed` and `hold` would.

        This is the way of every small message. False: it isn't such a frame, and nothing is done.
        """
        size = stop - at
        reassembly = stream.reassembly
        if (
            reassembly.need >= 0
            or reassembly.prefix
            or not 0 < size <= min(self._window, stream.receive_window)
            or stream.remote_closed
            or stream.ended
            or stream.content_length is not None
            or stream.admitted_bytes
            or stream.unfinished_bytes
        ):
            return False
        before = len(messages)
        bytes_max = reassembly.bytes_max
        while stop - at >= MESSAGE_PREFIX_BYTES:
            compressed, length = MESSAGE_PREFIX.unpack_from(data, at)
            at += MESSAGE_PREFIX_BYTES
            if compressed or length > bytes_max or length > stop - at:
                break
            messages.append(data[at : at + length])
            at += length
        else:
            if at == stop:
                self._window -= size
                stream.receive_window -= size
                stream.received_bytes += size
                stream.held_bytes += size
                self.held_bytes += size
                self._unread.held_bytes += size
                return True
        del messages[before:]
        return False

    def hold(self, stream: WireStream, size: int) -> None:
        """Messages of this size have become whole."""
        stream.held_bytes += size
        self.held_bytes += size
        self._unread.held_bytes += size
        if stream.admitted_bytes and size:
            self._release(stream)

    def keep(self, stream: WireStream) -> None:
        """Counts what the stream keeps of a message that isn't whole, after each change.

        Raises `CallRefusal` if that is too much together with other streams'.
        """
        kept = stream.reassembly.kept_bytes
        grown = kept - stream.unfinished_bytes
        stream.unfinished_bytes = kept
        self.unfinished.change(grown)
        # One message alone is bounded by the limit of messages.
        if grown > 0 and self.unfinished.is_over and self.unfinished.kept_bytes > kept:
            raise CallRefusal(
                RpcStatus(
                    Code.UNAVAILABLE,
                    f"unfinished messages of this connection have {self.unfinished.bytes_max} "
                    "bytes already: try again",
                )
            )

    def consumed(self, stream: WireStream, size: int) -> None:
        size = min(size, stream.held_bytes)
        stream.held_bytes -= size
        self.held_bytes -= size
        unread = self._unread
        unread.held_bytes -= size
        if unread.is_tight:
            unread.eased()

    def forget(self, stream: WireStream) -> None:
        """The stream has ended."""
        held_bytes, stream.held_bytes = stream.held_bytes, 0
        self.held_bytes -= held_bytes
        self._unread.change(-held_bytes)
        self.unfinished.change(-stream.unfinished_bytes)
        stream.unfinished_bytes = 0
        if stream.admitted_bytes:
            self._release(stream)

    def settle(self) -> None:
        """Gives credit on the connection, if half of it is due."""
        if (self._window_max - self._window) * 2 < self._window_max:
            return
        due = self._window_max - self._unread.excess(self.held_bytes) - self._window
        if due * 2 >= self._window_max:
            self._window += due
            self._send(window_update(0, due))

    def settle_stream(self, stream: WireStream) -> None:
        """Gives credit on the stream, if it is due."""
        if stream.remote_closed or stream.ended:
            return
        reassembly = stream.reassembly
        target = self._stream_window - stream.held_bytes
        if (
            reassembly.need < 0
            and not reassembly.prefix
            and (target - stream.receive_window) * 2 < self._stream_window
        ):
            return  # Between two messages, with more than half of the window left.
        if not stream.admitted_bytes:
            if reassembly.message_bytes > self._stream_window:
                self._admit_or_wait(stream)
            if not stream.admitted_bytes:
                target -= reassembly.held_bytes
        due = target - stream.receive_window
        if due > 0 and (
            due * 2 >= self._stream_window or reassembly.lacking_bytes > stream.receive_window
        ):
            stream.receive_window += due
            self._send(window_update(stream.id, due))

    def _admit_or_wait(self, stream: WireStream) -> None:
        size = stream.reassembly.message_bytes
        if not self.assembling_bytes or self.assembling_bytes + size <= self._assembly_max:
            stream.admitted_bytes = size
            self.assembling_bytes += size
        elif not stream.waits_for_admission:
            stream.waits_for_admission = True
            self._waiting.append(stream)

    def _release(self, stream: WireStream) -> None:
        self.assembling_bytes -= stream.admitted_bytes
        stream.admitted_bytes = 0
        for _ in range(len(self._waiting)):
            first = self._waiting.popleft()
            first.waits_for_admission = False
            # It may have ended. If it is still too large, it waits again, behind the others.
            self.settle_stream(first)

    # --- for tests ---

    def check(self, streams: Collection[WireStream]) -> None:
        """The invariants of a connection and its streams."""
        assert self.held_bytes == sum(s.held_bytes for s in streams)
        assert self.assembling_bytes == sum(s.admitted_bytes for s in streams)
        assert self.unfinished.kept_bytes == sum(s.unfinished_bytes for s in streams)
        for stream in streams:
            assert stream.unfinished_bytes == stream.reassembly.kept_bytes
            assert not (stream.local_closed and stream.remote_closed)
            assert stream.queued_bytes == sum(map(len, stream.queue))
            assert stream.receive_window <= self._stream_window
            assert stream.batch is None
