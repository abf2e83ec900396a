"""One client for each process and cluster, made when it is first needed.

Spark pickles readers and forks its workers, and neither sockets nor threads survive that. So
nothing that is pickled has a client, and a client is known by the process that made it.
"""

from __future__ import annotations

import functools
import os
import re

import ringmq
from ringmq.reading.sync_reader import SyncReader
from ringmq.sync import SyncClient
from ringmq_pipeline.offsets import QueueOffset
from ringmq_pipeline.options import SourceOptions


@functools.cache
def _client(process: int, endpoints: tuple[str, ...], vhost: str, timeout_s: float) -> SyncClient:
    return ringmq.connect_sync(endpoints, deadline_s=timeout_s, vhost=vhost)


def client_of(endpoints: tuple[str, ...], vhost: str, timeout_s: float) -> SyncClient:
    """It lives as long as the process, and finds each new master by itself."""
    return _client(os.getpid(), endpoints, vhost, timeout_s)


def client_for(options: SourceOptions) -> SyncClient:
    return client_of(options.endpoints, options.vhost, options.request_timeout_s)


def reader_for(options: SourceOptions, queue: str, at: QueueOffset | None = None) -> SyncReader:
    """`at`: its positions are refused when they mean other messages by now."""
    numbering = None if at is None else ringmq.Numbering(at.queue_id, at.epoch)
    return client_for(options).reader(queue, numbering=numbering)


def named_queues(options: SourceOptions) -> set[str]:
    """What the options name now: by name, whether it is there or not, or by their pattern. That
    leaves out exclusive queues: only the connection that has one may read it."""
    if not options.queue_pattern:
        return {*options.queues}
    listed = (info.queue for info in client_for(options).queues() if not info.owner)
    return {name for name in listed if is_named(options, name)}


def is_named(options: SourceOptions, queue: str) -> bool:
    """Whether the options name this queue, which may be there or not."""
    if not options.queue_pattern:
        return queue in options.queues
    return re.fullmatch(options.queue_pattern, queue) is not None
