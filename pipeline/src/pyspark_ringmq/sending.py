"""The streams of one producer of the sink, one for each queue, and what is on its way there.

A queue keeps the last sequence of a producer and the gaps below it, 4096 at most. Of what was below
those it can't tell any more whether it has it, and refuses a repeat. Rows that alternate between
queues, counted together, have a gap before each row. So the rows of each queue are counted by
themselves, and a producer has an id of its own in each queue. Not the task's id, by which older
versions have counted the rows of all queues: other rows would be taken for repeats.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import ringmq
from ringmq.sync import SyncPublisher
from ringmq_pipeline.connecting import client_of
from ringmq_pipeline.sink_options import SinkOptions

# Open at a time. The one that was used least recently is closed for another, and opened again when
# its queue has rows again.
STREAMS_MAX = 256
# What a queue keeps of one producer.
GAPS_MAX = 4096


class TaskStreams:
    """Left without an exception, all is confirmed."""

    def __init__(self, options: SinkOptions, producer: bytes) -> None:
        self._options = options
        self._producer = producer
        self._client = client_of(options.endpoints, options.vhost, options.request_timeout_s)
        # The one that was used last comes last.
        self._open: OrderedDict[str, SyncPublisher] = OrderedDict()
        # By queue: behind the last sequence that was handed over, and how many times one was left
        # out. The count of rows leaves none out.
        self._next: dict[str, int] = {}
        self._gaps: Counter[str] = Counter()
        self._unconfirmed = Unconfirmed(options.window_messages, options.window_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as closing:
            for publisher in self._open.values():
                closing.callback(publisher.close, flush=False)
            if error is None:
                self._unconfirmed.wait_all()

    def publish(
        self,
        queue: str,
        bodies: Sequence[bytes],
        properties: Sequence[ringmq.Properties],
        *,
        is_transient: bool,
        priority: int,
        ttl_ms: int | None,
        first_sequence: int | None = None,
    ) -> None:
        """The next rows of this queue. `properties`: none, or one for each. `first_sequence`: of
        the first row, if the rows say it, and the others follow. Raises `ValueError` for one that
        isn't above those before, or for too many that were left out."""
        if first_sequence is not None:
            self._go_on_at(queue, first_sequence)
        call = self._publisher_to(queue).submit_batch(
            bodies,
            properties or None,
            routing_key=queue,
            # Else a message to a queue that isn't there would be confirmed, and nowhere.
            mandatory=True,
            transient=is_transient,
            priority=priority,
            ttl_ms=ttl_ms,
        )
        self._next[queue] = self._next.get(queue, 1) + len(bodies)
        self._unconfirmed.add(call, len(bodies), sum(map(len, bodies)))

    def _go_on_at(self, queue: str, sequence: int) -> None:
        following = self._next.get(queue, 1)
        if sequence == following:
            return
        column = self._options.sequence_column
        if sequence < following:
            raise ValueError(
                f"queue {queue!r}: a row has {sequence - 1} in the column {column!r}, behind one "
                f"with {following - 2}: sort the rows of a task by it, or give rows of different "
                "sources a producerColumn"
            )
        self._gaps[queue] += 1
        if self._gaps[queue] > GAPS_MAX:
            raise ValueError(
                f"queue {queue!r}: the column {column!r} has more than {GAPS_MAX} gaps in the rows "
                "of a task, and the queue couldn't tell any more what it has of a repeat. Write "
                "smaller batches, in more tasks, or leave fewer rows out"
            )
        self._next[queue] = sequence
        publisher = self._open.pop(queue, None)
        if publisher is not None:
            # One counts on where it was opened.
            publisher.close()

    def _publisher_to(self, queue: str) -> SyncPublisher:
        publisher = self._open.get(queue)
        if publisher is not None:
            self._open.move_to_end(queue)
            return publisher
        if len(self._open) >= STREAMS_MAX:
            _, unused = self._open.popitem(last=False)
            # What of it isn't confirmed, its call says.
            unused.close()
        # Through the default exchange, so that a sequence is the row's number: a refused message
        # leaves a gap, and no later one moves up.
        publisher = self._open[queue] = self._client.publisher(
            exchange="",
            producer_id=self._id_in(queue),
            first_sequence=self._next.get(queue, 1),
            window_messages=self._options.window_messages,
            window_bytes=self._options.window_bytes,
        )
        return publisher

    def _id_in(self, queue: str) -> bytes:
        column = self._options.sequence_column
        if self._options.queue and not column:
            return self._producer
        # Sequences of another kind are another producer's.
        by = f"\0{column}\0" if column else ""
        return hashlib.sha256(self._producer + f"{by}{queue}".encode()).digest()[:16]


class Unconfirmed:
    """The calls of a producer that aren't confirmed, oldest first.

    Were each one waited for, the window would run empty at its end, and the nodes wait for the next
    one while its rows are made into messages. So a window is left unconfirmed: one window and one
    call are held at most.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = self._bytes = 0
        self._calls: deque[tuple[Future[None], int, int]] = deque()

    def add(self, call: Future[None], messages: int, size_bytes: int) -> None:
        """Waits until at most a window is left. Raises why an older call has failed."""
        self._calls.append((call, messages, size_bytes))
        self._messages += messages
        self._bytes += size_bytes
        while self._messages > self._messages_max or self._bytes > self._bytes_max:
            self._wait_oldest()

    def wait_all(self) -> None:
        """Raises why a call has failed."""
        while self._calls:
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        call, messages, size_bytes = self._calls.popleft()
        self._messages -= messages
        self._bytes -= size_bytes
        call.result()
