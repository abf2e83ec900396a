"""What goes out on a connection, and in which turns. Pure.

Control frames first: they are few, small, and bounded by the budgets. Then the heads of calls and
answers. Then DATA, one frame for each stream in turn, at most `FRAME_BYTES_MAX` each. A stream with
little to send (`LIGHT_BYTES_MAX`) goes before those with much, so that heartbeats and confirms pass
bodies; after a frame's worth of little ones a large one has its turn, so that nobody starves.

Of a stream that ends nothing is kept here, so the limit of streams bounds what waits.

Order matters in one place: the acknowledgement of the peer's SETTINGS stands before every frame
that relies on them, because it is a control frame, and DATA is cut only when it is taken to be
written. Stock clients close the connection otherwise.
"""

from __future__ import annotations

from collections import OrderedDict

from ringmq_wire.budgets import CONTROL_WAITING_MAX
from ringmq_wire.codes import ErrorCode
from ringmq_wire.errors import ConnectionFault
from ringmq_wire.frames import END_STREAM, FRAME_HEADER_BYTES, header_frames, rst_stream
from ringmq_wire.options import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    WINDOW_BYTES_INITIAL,
    WINDOW_BYTES_MAX,
)
from ringmq_wire.streams import WireStream

LIGHT_BYTES_MAX = 16 * 1024


class Outflow:
    """See the module."""

    __slots__ = (
        "_control",
        "_heads",
        "_heavy",
        "_light",
        "_light_bytes",
        "_own",
        "_parked_heavy",
        "_parked_light",
        "closed",
        "frame_bytes_max",
        "frames_sent",
        "resumable",
        "send_low_bytes",
        "window",
    )

    def __init__(self, send_low_bytes: int) -> None:
        self._control: list[bytes] = []
        # How many of these this side's application has caused.
        self._own = 0
        # Header blocks that begin a stream, or its answer, by its number.
        self._heads: dict[int, bytes] = {}
        # Streams by number, in the order of their turns. (OrderedDict: a plain dict takes long to
        # find its first item once many were removed.)
        self._light: OrderedDict[int, WireStream] = OrderedDict()
        self._heavy: OrderedDict[int, WireStream] = OrderedDict()
        # These wait for the connection's window.
        self._parked_light: OrderedDict[int, WireStream] = OrderedDict()
        self._parked_heavy: OrderedDict[int, WireStream] = OrderedDict()
        # Sent since the last large stream had its turn.
        self._light_bytes = 0
        self.window = WINDOW_BYTES_INITIAL
        self.frame_bytes_max = FRAME_BYTES_MIN
        self.send_low_bytes = send_low_bytes
        # DATA frames sent so far.
        self.frames_sent = 0
        # For the connection, which empties them: streams whose last frame was taken, and streams
        # whose senders may go on.
        self.closed: list[WireStream] = []
        self.resumable: list[WireStream] = []

    @property
    def ready(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._control or self._light or self._heavy or self._heads)

    def check_waiting(self) -> None:
        """Raises `ConnectionFault` if the peer has caused too many frames, and reads none."""
        if len(self._control) - self._own > CONTROL_WAITING_MAX:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"the peer asks and doesn't read: {CONTROL_WAITING_MAX} frames wait for it",
            )

    def control(self, frame: bytes, *, own: bool = False) -> None:
        """`own`: this side's application has caused it, and something else bounds their number."""
        self._control.append(frame)
        self._own += own

    def pong(self, frame: bytes) -> None:
        """The answer to a PING, behind all heads that wait. A server that goes away takes it for
        the end of new calls (RFC 9113, section 6.8): one that comes behind it is lost."""
        self._own += len(self._heads)
        self._control += self._heads.values()
        self._heads.clear()
        self._control.append(frame)

    def head(self, stream: WireStream, frames: bytes) -> None:
        self._heads[stream.id] = frames

    def has_head(self, stream: WireStream) -> bool:
        """Whether the stream's head hasn't left yet."""
        return stream.id in self._heads

    def drop_all(self) -> None:
        """The connection ends: only the control frames from now on go out."""
        self._heads.clear()
        self._light.clear()
        self._heavy.clear()
        self._parked_light.clear()
        self._parked_heavy.clear()

    def schedule(self, stream: WireStream) -> None:
        """The stream may have something to send."""
        if stream.scheduled or stream.local_closed:
            return
        if not stream.queued_bytes:
            # Its end needs no window, of the stream or of the connection.
            if stream.finish_flags:
                stream.scheduled = True
                self._light[stream.id] = stream
        elif stream.send_window <= 0:
            stream.waits_for_window = True
        elif stream.parked or self.window <= 0:
            self._park(stream)
        else:
            stream.scheduled = True
            line = self._light if stream.queued_bytes <= LIGHT_BYTES_MAX else self._heavy
            line[stream.id] = stream

    def forget(self, stream: WireStream) -> None:
        """The stream has ended. Nothing of it is kept: the network, or the connection's window, may
        take nothing for a long time."""
        self._heads.pop(stream.id, None)
        if stream.scheduled:
            stream.scheduled = False
            self._light.pop(stream.id, None)
            self._heavy.pop(stream.id, None)
        if stream.parked:
            stream.parked = False
            self._parked_light.pop(stream.id, None)
            self._parked_heavy.pop(stream.id, None)

    def _park(self, stream: WireStream) -> None:
        """It keeps its place if it waits already."""
        stream.parked = True
        if stream.queued_bytes <= LIGHT_BYTES_MAX:
            self._parked_light.setdefault(stream.id, stream)
        else:
            self._parked_light.pop(stream.id, None)
            self._parked_heavy.setdefault(stream.id, stream)

    def _unpark(self) -> None:
        """Streams that wait for the connection's window get in line, as far as it has room for what
        they have. If all did, each update by a few bytes would cost a look at ten thousand."""
        room = self.window
        if room <= 0:
            return
        while room > 0 and self._parked_light:
            room -= self._line_up(self._parked_light)
        if self._parked_heavy:
            # One of these in any case: it has its turn behind so many little ones.
            room -= self._line_up(self._parked_heavy)
        while room > 0 and self._parked_heavy:
            room -= self._line_up(self._parked_heavy)

    def _line_up(self, parked: OrderedDict[int, WireStream]) -> int:
        """The first of these; returns what it can send."""
        _, stream = parked.popitem(last=False)
        stream.parked = False
        self.schedule(stream)
        return min(stream.queued_bytes, stream.send_window) if stream.scheduled else 0

    def widen(self, stream: WireStream, increment: int) -> bool:
        """The stream's window grows, or shrinks by SETTINGS; False if it is too large now."""
        stream.send_window += increment
        if stream.waits_for_window and stream.send_window > 0:
            stream.waits_for_window = False
            self.schedule(stream)
        return stream.send_window <= WINDOW_BYTES_MAX

    def widen_connection(self, increment: int) -> None:
        self.window += increment
        if self.window > WINDOW_BYTES_MAX:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, f"the connection's window is {self.window} bytes"
            )
        self._unpark()

    def take(self, bytes_max: int) -> list[bytes | memoryview]:
        """The pieces to be written next: about `bytes_max`, at most one frame more."""
        out: list[bytes | memoryview] = []
        if self._control:
            out += self._control
            self._control.clear()
            self._own = 0
        if self._heads:
            out += self._heads.values()
            self._heads.clear()
        size = 0
        while size < bytes_max:
            if self._light and (self._light_bytes < FRAME_BYTES_MAX or not self._heavy):
                taken = self._turn(self._light.popitem(last=False)[1], out)
                self._light_bytes += taken
            elif self._heavy:
                self._light_bytes = 0
                taken = self._turn(self._heavy.popitem(last=False)[1], out)
            else:
                break
            size += taken
            if not self._light and not self._heavy:
                # Those in line had less to send than it seemed.
                self._unpark()
        return out

    def _turn(self, stream: WireStream, out: list[bytes | memoryview]) -> int:
        """One frame of this stream, and its end if nothing else is left; returns the bytes."""
        stream.scheduled = False
        if stream.local_closed:
            return 0
        if stream.queued_bytes:
            bytes_max = min(self.frame_bytes_max, stream.send_window, self.window)
            if bytes_max <= 0:
                # A window was used up, or SETTINGS took it away, since the stream got in line.
                self.schedule(stream)
                return 0
            size = stream.take_frame(bytes_max, out)
            self.window -= size
            self.frames_sent += 1
            stream.answered = True
            if stream.paused and stream.queued_bytes < (
                1 if stream.drains else self.send_low_bytes
            ):
                stream.paused = stream.drains = False
                self.resumable.append(stream)
        else:
            size = 0
        if stream.queued_bytes:
            self.schedule(stream)
        elif stream.finish_flags:
            self._finish(stream, out)
        return size + FRAME_HEADER_BYTES

    def _finish(self, stream: WireStream, out: list[bytes | memoryview]) -> None:
        """All data has gone: the end of the stream follows, unless it went with the data."""
        if stream.trailers is not None:
            block = stream.trailers
            out.append(header_frames(stream.id, END_STREAM, block, self.frame_bytes_max))
            stream.answered = True
            stream.local_closed = True
            if not stream.remote_closed:
                # RFC 9113, section 8.1: the answer is whole, the rest of the request isn't needed.
                out.append(rst_stream(stream.id, ErrorCode.NO_ERROR))
        elif not stream.local_closed:
            stream.take_frame(0, out)
        self.closed.append(stream)
