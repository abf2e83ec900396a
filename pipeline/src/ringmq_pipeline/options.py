"""The options of the source `ringmq`, from the strings that Spark passes. Pure.

Options have the names of Spark's Kafka source where it has one for the same thing, so that a job
that reads Kafka can be read, and changed, by anybody who knows that. Spark doesn't tell the
letters' case apart, so neither does this. A value that can't be used is an error that names the
option and the values that it takes. An option that isn't known is an error, too: a mistyped
`failOnDataLos` must not be the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from ringmq_pipeline.option_values import (
    OptionError,
    boolean,
    duration,
    endpoints,
    known_only,
    one_of,
    payload,
    positive,
    queue_name,
    size,
    text,
)

T = TypeVar("T")


class StartingOffsets(Enum):
    """Where a query without a checkpoint begins in a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


class ReadFrom(Enum):
    """Which replica a task reads: `ringmq.BrowseSource`, with `leader` for the master."""

    LEADER = "leader"
    MIRROR = "mirror"
    ANY = "any"


class PayloadEncoding(Enum):
    """Who makes the columns: the task, of messages as they are stored, or the node."""

    PROTO = "proto"
    ARROW = "arrow"


class AckMode(Enum):
    """When messages leave the queue: once Spark has committed their batch, or never."""

    COMMITTED = "committed"
    NEVER = "never"


# Where to begin or end: everywhere alike, or by queue at a position.
Offsets = StartingOffsets | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Sizes in bytes, times in seconds. One of `queues` and `queue_pattern` is given."""

    endpoints: tuple[str, ...]
    queues: tuple[str, ...]
    queue_pattern: str
    vhost: str
    starting_offsets: Offsets
    # Of a batch query.
    ending_offsets: Offsets
    max_messages_per_trigger: int
    max_bytes_per_trigger: int
    # With fewer, a batch of a stream waits, but no longer than that. 0: none waits.
    min_offsets_per_trigger: int
    max_trigger_delay_s: float
    min_partitions: int
    # 0: any number.
    max_records_per_partition: int
    fail_on_data_loss: bool
    # Of each body; None: all of it.
    body_bytes_max: int | None
    include_headers: bool
    include_properties: bool
    ack_mode: AckMode
    lease: str
    lease_ttl_s: float
    # Who has the lease, for people; sources with the same holder have it together. Empty: this
    # process alone.
    lease_holder: str
    read_from: ReadFrom
    encoding: PayloadEncoding
    request_timeout_s: float


KNOWN: Final = (
    "endpoints",
    "queue",
    "queues",
    "queuePattern",
    "vhost",
    "startingOffsets",
    "endingOffsets",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "payload",
    "includeHeaders",
    "includeProperties",
    "ackMode",
    "lease",
    "leaseTtl",
    "leaseHolder",
    "readFrom",
    "encoding",
    "requestTimeout",
)
# Of the Kafka source, for times in place of positions.
_BY_TIME: Final = (
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Raises `OptionError`."""
    by_time = {name.lower() for name in _BY_TIME}
    for name in options:
        if name.lower() in by_time:
            raise OptionError(
                name,
                "queues are read by position, and know no position by time: give startingOffsets "
                "or endingOffsets, and choose rows by published_at, if publishers set it",
            )
    given = known_only(options, KNOWN, "the source ringmq")

    def take(name: str, default: T, read: Callable[[str, str], T]) -> T:
        return read(name, given[name]) if name in given else default

    queues, pattern = _queues_of(given)
    earliest: Offsets = StartingOffsets.EARLIEST
    latest: Offsets = StartingOffsets.LATEST
    starting = take("startingOffsets", earliest, _offsets)
    ending = take("endingOffsets", latest, _offsets)
    if ending is StartingOffsets.EARLIEST:
        raise OptionError("endingOffsets", "it is 'latest' or JSON: a range doesn't end 'earliest'")
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        if isinstance(offsets, Mapping):
            _refuse_others(name, offsets, queues, pattern)
    messages_max = take("maxMessagesPerTrigger", 50_000, positive)
    offsets_min = take("minOffsetsPerTrigger", 0, positive)
    if offsets_min > messages_max:
        raise OptionError(
            "minOffsetsPerTrigger", f"{offsets_min} is above maxMessagesPerTrigger, {messages_max}"
        )
    return SourceOptions(
        endpoints=endpoints(given),
        queues=queues,
        queue_pattern=pattern,
        vhost=given.get("vhost", ""),
        starting_offsets=starting,
        ending_offsets=ending,
        max_messages_per_trigger=messages_max,
        max_bytes_per_trigger=take("maxBytesPerTrigger", 64 << 20, size),
        min_offsets_per_trigger=offsets_min,
        max_trigger_delay_s=take("maxTriggerDelay", 900.0, duration),
        min_partitions=take("minPartitions", 1, positive),
        max_records_per_partition=take("maxRecordsPerPartition", 0, positive),
        fail_on_data_loss=take("failOnDataLoss", True, boolean),
        body_bytes_max=take("payload", None, payload),
        include_headers=take("includeHeaders", False, boolean),
        include_properties=take("includeProperties", False, boolean),
        ack_mode=take("ackMode", AckMode.COMMITTED, one_of(AckMode)),
        lease=take("lease", "ingest", text),
        lease_ttl_s=take("leaseTtl", 30.0, duration),
        lease_holder=take("leaseHolder", "", text),
        read_from=take("readFrom", ReadFrom.LEADER, one_of(ReadFrom)),
        encoding=take("encoding", PayloadEncoding.PROTO, one_of(PayloadEncoding)),
        request_timeout_s=take("requestTimeout", 30.0, duration),
    )


def _refuse_others(
    name: str, offsets: Mapping[str, int], queues: tuple[str, ...], pattern: str
) -> None:
    """Positions in queues that aren't read: their names may be mistyped."""
    for queue in sorted(offsets):
        if pattern and not re.fullmatch(pattern, queue):
            raise OptionError(name, f"queue {queue!r} isn't read: {pattern!r} doesn't match it")
        if queues and queue not in queues:
            raise OptionError(name, f"queue {queue!r} isn't read: only {', '.join(queues)}")


def _queues_of(given: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    named = [name for name in ("queue", "queues", "queuePattern") if name in given]
    if len(named) != 1:
        raise OptionError(
            named[1] if named else "queue",
            "give one of 'queue', 'queues' (with commas) and 'queuePattern'"
            + (f", not {' and '.join(named)}" if named else ""),
        )
    [name] = named
    value = queue_name(name, given[name])
    if name == "queuePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(name, f"no regular expression: {error}") from error
        return (), value
    if name == "queue":
        return (value,), ""
    queues = tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip()))
    if not queues:
        raise OptionError(name, f"{value!r} names no queue")
    return queues, ""


# --- values ---


def _offsets(name: str, value: str) -> Offsets:
    asked = value.strip()
    if not asked.startswith("{"):
        return one_of(StartingOffsets)(name, asked)
    try:
        found = json.loads(asked)
    except ValueError as error:
        raise OptionError(name, f"no JSON: {error}") from error
    for queue, position in found.items():
        if type(position) is not int or position < 0:
            raise OptionError(name, f"queue {queue!r}: {position!r} is not a position")
    return dict(found)
