"""One stream: the state of a call, and the bytes that wait in it. Pure.

A stream ends when both of its halves have, or when either side resets it. On the server's side the
application's part ends with `finish`: what the peer still sends is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from ringmq_wire.codes import Code
from ringmq_wire.frames import DATA, FRAME_HEADER, MESSAGE_PREFIX
from ringmq_wire.parts import COPIED_BYTES_MAX, Parts, WireMessage
from ringmq_wire.reassembly import Reassembly


class WireStream:
    """See the module. Shells read `id`, `queued_bytes` and `owner`; the rest is the core's."""

    __slots__ = (
        "admitted_bytes",
        "announced",
        "answered",
        "batch",
        "content_length",
        "deadline",
        "drains",
        "ended",
        "finish_flags",
        "head_seen",
        "head_sent",
        "held_bytes",
        "id",
        "local_closed",
        "opened_at",
        "owner",
        "parked",
        "paused",
        "queue",
        "queued_bytes",
        "reassembly",
        "receive_window",
        "received_bytes",
        "remote_closed",
        "scheduled",
        "send_window",
        "trailers",
        "unfinished_bytes",
        "waits_for_admission",
        "waits_for_window",
        "within_message",
    )

    def __init__(
        self,
        stream_id: int,
        *,
        now: float,
        send_window: int,
        receive_window: int,
        message_bytes_max: int,
        compressed_code: Code,
    ) -> None:
        self.id = stream_id
        # The shell's own object for this call.
        self.owner: Any = None
        self.opened_at = now
        self.deadline: float | None = None

        # --- what comes ---
        self.reassembly = Reassembly(message_bytes_max, compressed_code)
        # The peer may still send so many bytes.
        self.receive_window = receive_window
        # Whole messages that the application hasn't consumed.
        self.held_bytes = 0
        # The `CallMessages` that is being filled, during one `receive`.
        self.batch: Any = None
        # The size of a message larger than the window that may be assembled; 0: there is none.
        self.admitted_bytes = 0
        self.waits_for_admission = False
        # The memory of the message that isn't whole, as the budget counts it.
        self.unfinished_bytes = 0
        self.content_length: int | None = None
        self.received_bytes = 0
        # The head of the answer was received (client).
        self.head_seen = False
        self.remote_closed = False

        # --- what goes ---
        self.queue: deque[bytes | memoryview] = deque()
        self.queued_bytes = 0
        # The frame that went last has ended within a message.
        self.within_message = False
        self.send_window = send_window
        # In one of the lines of those that have a frame to send.
        self.scheduled = False
        # It waits for the connection's window.
        self.parked = False
        self.waits_for_window = False
        # The sender was told to pause.
        self.paused = False
        # It is told to go on once nothing waits any more, not once little does.
        self.drains = False
        # The head of the answer was sent (server).
        self.head_sent = False
        # The header block that ends the answer, once all before it is sent.
        self.trailers: bytes | None = None
        # This side's half ends once all before it is sent.
        self.finish_flags = 0
        self.local_closed = False
        # Anything of the answer was sent: the peer's reset is then no rapid one.
        self.answered = False
        # The application knows this call.
        self.announced = False
        # The application was told the end, or has made it.
        self.ended = False

    def put(self, messages: Iterable[WireMessage]) -> None:
        """Queues these messages, each behind its prefix."""
        queue = self.queue
        pack = MESSAGE_PREFIX.pack
        queued = self.queued_bytes
        for message in messages:
            size = len(message)
            queued += size + 5
            if size <= COPIED_BYTES_MAX:
                queue.append(pack(0, size) + message)
            elif isinstance(message, Parts):
                queue.append(pack(0, size))
                queue += message.buffers
            else:
                queue.append(pack(0, size))
                queue.append(message)
        self.queued_bytes = queued

    def pause_until_taken(self) -> bool:
        """The sender pauses until all that waits is taken; False if nothing waits."""
        if self.queued_bytes:
            self.paused = self.drains = True
        return self.paused

    def drop_queue(self) -> None:
        self.queue.clear()
        self.queued_bytes = 0

    def take_frame(self, bytes_max: int, out: list[bytes | memoryview]) -> int:
        """Adds one DATA frame with up to so many bytes of the queue; returns their number.

        `bytes_max` may be 0 only if nothing waits but the end of the stream.
        """
        flags = 0
        size = self.queued_bytes
        if size <= bytes_max:
            if self.trailers is None:
                flags = self.finish_flags
            out.append(FRAME_HEADER.pack(size >> 8, size & 0xFF, DATA, flags, self.id))
            out.extend(self.queue)
            self.queue.clear()
            self.queued_bytes = 0
            self.within_message = False
        else:
            size = bytes_max
            out.append(FRAME_HEADER.pack(size >> 8, size & 0xFF, DATA, 0, self.id))
            self._take_part(size, out)
            self.queued_bytes -= size
            self.within_message = True
        self.send_window -= size
        if flags:
            self.local_closed = True
        return size

    def _take_part(self, size: int, out: list[bytes | memoryview]) -> None:
        queue = self.queue
        while size:
            piece = queue.popleft()
            length = len(piece)
            if length > size:
                view = memoryview(piece)
                queue.appendleft(view[size:])
                out.append(view[:size])
                return
            out.append(piece)
            size -= length
