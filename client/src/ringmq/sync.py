"""The client without asyncio, for scripts: `ringmq.connect_sync`.

    with ringmq.connect_sync("127.0.0.1:7801") as client:
        with client.publisher("orders") as publisher:
            publisher.publish(b"hello")
        with client.consumer("orders") as consumer:
            for batch in consumer:
                consumer.ack(batch)

The same names, arguments, results and errors as in `ringmq.client`; each call waits. All clients
of a process share one event loop in one daemon thread. That loop is uvloop's, whatever
the program's own event loop is.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Unpack

from ringmq.calls.arguments import checked
from ringmq.calls.loop_thread import OnLoop, hand_on
from ringmq.calls.loop_thread import await_on_loop as _await
from ringmq.calls.loop_thread import begin_on_loop as _begin
from ringmq.calls.loop_thread import run_on_loop as _run
from ringmq.calls.waiting_call import waiting
from ringmq.client import WINDOW_BYTES, Client
from ringmq.connecting import DEADLINE_S, RECEIVE_BYTES_MAX, connect
from ringmq.consuming.consumer import Consumer, ConsumerOptions
from ringmq.consuming.shared_prefetch import SharedPrefetch
from ringmq.model.messages import Batch, Message, Properties
from ringmq.model.positions import Numbering
from ringmq.model.queues import BlockReason
from ringmq.publishing.asked import MessageOptions, listed_bodies
from ringmq.publishing.publisher import Publisher
from ringmq.reading.sync_reader import SyncReader
from ringmq.sync_operator import SyncOperator
from ringmq.sync_topology import SyncTopology


def connect_sync(
    seeds: str | Iterable[str],
    *,
    deadline_s: float = DEADLINE_S,
    receive_bytes_max: int = RECEIVE_BYTES_MAX,
    vhost: str = "",
) -> SyncClient:
    """A connected client; see `ringmq.connect`. A context manager, or call `close`."""

    async def work() -> Client:
        return await connect(
            seeds, deadline_s=deadline_s, receive_bytes_max=receive_bytes_max, vhost=vhost
        )

    return SyncClient(_run(work()))


class SyncClient(OnLoop[Client]):
    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self.is_inherited:
            _run(self.calls.close())

    @property
    def deadline_s(self) -> float:
        return self.calls.deadline_s

    @property
    def topology(self) -> SyncTopology:
        return SyncTopology(self.calls.topology)

    @property
    def operator(self) -> SyncOperator:
        """Policies and nodes: the calls that change the whole cluster."""
        return SyncOperator(self.calls.operator)

    declare_queue = waiting(Client.declare_queue)
    check_queue = waiting(Client.check_queue)
    set_queue_mode = waiting(Client.set_queue_mode)
    delete_queue = waiting(Client.delete_queue)
    purge_queue = waiting(Client.purge_queue)
    discard_damaged = waiting(Client.discard_damaged)
    queue = waiting(Client.queue)
    queues = waiting(Client.queues)
    locate_queue = waiting(Client.locate_queue)
    get_messages = waiting(Client.get_messages)
    cluster_status = waiting(Client.cluster_status)
    promote_mirror = waiting(Client.promote_mirror)
    sync_queue = waiting(Client.sync_queue)

    def reader(
        self,
        queue: str,
        *,
        vhost: str = "",
        numbering: Numbering | None = None,
        deadline_s: float | None = None,
    ) -> SyncReader:
        reader = self.calls.reader(queue, vhost=vhost, numbering=numbering, deadline_s=deadline_s)
        return SyncReader(reader)

    def publisher(
        self,
        queue: str = "",
        *,
        exchange: str | None = None,
        vhost: str = "",
        first_sequence: int | None = None,
        window_messages: int = 1000,
        window_bytes: int = WINDOW_BYTES,
        producer_id: bytes | None = None,
        deadline_s: float | None = None,
        on_blocked: Callable[[tuple[BlockReason, ...]], None] | None = None,
        on_unblocked: Callable[[], None] | None = None,
    ) -> SyncPublisher:
        """An open publisher; a context manager, or call `close`.

        `on_blocked` and `on_unblocked` are called in the client's own thread, and must not call
        this client: see `Client.publisher`.
        """

        async def work() -> Publisher:
            publisher = self.calls.publisher(
                queue,
                exchange=exchange,
                vhost=vhost,
                first_sequence=first_sequence,
                window_messages=window_messages,
                window_bytes=window_bytes,
                producer_id=producer_id,
                deadline_s=deadline_s,
                on_blocked=on_blocked,
                on_unblocked=on_unblocked,
            )
            await publisher.open()
            return publisher

        return SyncPublisher(_run(work()))

    def consumer(
        self,
        queue: str,
        *,
        prefetch: int = 1000,
        prefetch_bytes: int = 0,
        consumer_tag: str = "",
        deadline_s: float | None = None,
        **terms: Unpack[ConsumerOptions],
    ) -> SyncConsumer:
        """An open consumer; a context manager, or call `close`. `on_active` and `on_interrupted`
        are called in the clients' thread, and must not call this client."""

        async def work() -> Consumer:
            consumer = self.calls.consumer(
                queue,
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                consumer_tag=consumer_tag,
                deadline_s=deadline_s,
                **terms,
            )
            await consumer.open()
            return consumer

        return SyncConsumer(_run(work()))

    @checked
    def change_shared_prefetch(
        self, shared: SharedPrefetch, messages: int = 0, size_bytes: int = 0
    ) -> None:
        """See `SharedPrefetch.change`, which only the clients' thread may call."""
        _run(shared.change(messages, size_bytes))


class SyncPublisher(OnLoop[Publisher]):
    def __enter__(self) -> SyncPublisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(flush=error is None)

    def close(self, *, flush: bool = True) -> None:
        if not self.is_inherited:
            _run(self.calls.close(flush=flush))

    def publish(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        _await(lambda: self.calls.publishing(body, properties, deadline_s=deadline_s, **options))

    def publish_batch(
        self,
        bodies: Iterable[bytes],
        properties: Properties | Sequence[Properties] | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        # The caller's iterable runs in the caller's thread.
        listed = listed_bodies(bodies)
        calls = self.calls
        _await(lambda: calls.publishing_batch(listed, properties, deadline_s=deadline_s, **options))

    def submit_batch(
        self,
        bodies: Iterable[bytes],
        properties: Properties | Sequence[Properties] | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> concurrent.futures.Future[None]:
        """`publish_batch` without the wait: the window stays full from one call to the next. The
        future is done when all are confirmed. It waits for no room: the caller bounds how many
        bodies wait. What this thread publishes next comes behind them."""
        listed = listed_bodies(bodies)
        calls = self.calls
        return _begin(
            lambda: calls.publishing_batch(listed, properties, deadline_s=deadline_s, **options)
        )

    def submit(
        self,
        body: bytes,
        properties: Properties | None = None,
        *,
        deadline_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> concurrent.futures.Future[None]:
        """Waits for room in the window only; the future is done when the message is confirmed."""
        confirm: concurrent.futures.Future[None] = concurrent.futures.Future()

        async def work() -> None:
            future = await self.calls.submit(body, properties, deadline_s=deadline_s, **options)
            hand_on(future, confirm)

        _run(work())
        return confirm

    def flush(self) -> None:
        _run(self.calls.flush())

    @property
    def producer_id(self) -> bytes:
        return self.calls.producer_id

    @property
    def blocked_by(self) -> tuple[BlockReason, ...]:
        return self.calls.blocked_by

    @property
    def properties_bytes_max(self) -> int:
        return self.calls.properties_bytes_max

    @property
    def last_sequence(self) -> int:
        return self.calls.last_sequence

    @property
    def outstanding_messages(self) -> int:
        return self.calls.outstanding_messages

    @property
    def node_address(self) -> str:
        return self.calls.node_address


class SyncConsumer(OnLoop[Consumer]):
    def __enter__(self) -> SyncConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self.is_inherited:
            _run(self.calls.close())

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        return _run(self.calls.next_batch(timeout_s))

    def pull(
        self, messages_max: int = 1, *, bytes_max: int = 0, deadline_s: float | None = None
    ) -> Batch:
        return _run(self.calls.pull(messages_max, bytes_max=bytes_max, deadline_s=deadline_s))

    def ack(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        return _run(self.calls.ack(what, last, wait=wait, deadline_s=deadline_s))

    def nack(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        requeue: bool = True,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        return _run(self.calls.nack(what, last, requeue=requeue, wait=wait, deadline_s=deadline_s))

    def reject(
        self,
        what: Batch | Message | int,
        last: int | None = None,
        *,
        wait: bool = False,
        deadline_s: float | None = None,
    ) -> bool:
        return _run(self.calls.reject(what, last, wait=wait, deadline_s=deadline_s))

    def set_prefetch(self, prefetch: int, prefetch_bytes: int = 0) -> None:
        _run(self.calls.set_prefetch(prefetch, prefetch_bytes))

    @property
    def prefetch(self) -> tuple[int, int]:
        return self.calls.prefetch

    @property
    def active(self) -> bool:
        return self.calls.active

    @property
    def consumer_tag(self) -> str:
        return self.calls.consumer_tag

    @property
    def generation(self) -> int:
        return self.calls.generation

    @property
    def unsettled_messages(self) -> int:
        return self.calls.unsettled_messages

    @property
    def node_address(self) -> str:
        return self.calls.node_address
