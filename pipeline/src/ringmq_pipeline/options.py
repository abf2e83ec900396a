"""The options of the source `ringmq`, from the strings that Spark passes. Pure.

Options have the names of Spark's Kafka source where it has one for the same thing, so that a job
that reads Kafka can be read, and changed, by anybody who knows that. Spark doesn't tell the
letters' case apart, so neither does this. A value that can't be used is an error that names the
option and the values that it takes. An option that isn't known is an error, too: a mistyped
`failOnDataLos` must not be the default.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class OptionError(ValueError):
    """An option of the source can't be used. `option` names it."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"option {option!r}: {why}")
        self.option = option


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
    """How messages come from the node; `auto`: as Arrow where both sides have pyarrow."""

    AUTO = "auto"
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
    min_partitions: int
    # 0: any number.
    max_records_per_partition: int
    fail_on_data_loss: bool
    # Of each body; None: all of it.
    body_bytes_max: int | None
    include_headers: bool
    ack_mode: AckMode
    lease: str
    lease_ttl_s: float
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
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "payload",
    "includeHeaders",
    "ackMode",
    "lease",
    "leaseTtl",
    "readFrom",
    "encoding",
    "requestTimeout",
)
_BY_LOWER: Final = {name.lower(): name for name in KNOWN}
# Spark hands these to every source.
_SPARKS_OWN: Final = {"path"}


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Raises `OptionError`."""
    given: dict[str, str] = {}
    for name, value in options.items():
        known = _BY_LOWER.get(name.lower())
        if known is None and name.lower() in _SPARKS_OWN:
            continue
        if known is None:
            near = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1)
            hint = f"; did you mean {_BY_LOWER[near[0]]!r}?" if near else ""
            raise OptionError(name, f"the source ringmq has no such option{hint}")
        given[known] = value

    def take(name: str, default: T, read: Callable[[str, str], T]) -> T:
        return read(name, given[name]) if name in given else default

    queues, pattern = _queues_of(given)
    earliest: Offsets = StartingOffsets.EARLIEST
    latest: Offsets = StartingOffsets.LATEST
    starting = take("startingOffsets", earliest, _offsets)
    ending = take("endingOffsets", latest, _offsets)
    if ending is StartingOffsets.EARLIEST:
        raise OptionError("endingOffsets", "it is 'latest' or JSON: a range doesn't end 'earliest'")
    return SourceOptions(
        endpoints=_endpoints(given),
        queues=queues,
        queue_pattern=pattern,
        vhost=given.get("vhost", ""),
        starting_offsets=starting,
        ending_offsets=ending,
        max_messages_per_trigger=take("maxMessagesPerTrigger", 50_000, _positive),
        max_bytes_per_trigger=take("maxBytesPerTrigger", 64 << 20, _size),
        min_partitions=take("minPartitions", 1, _positive),
        max_records_per_partition=take("maxRecordsPerPartition", 0, _positive),
        fail_on_data_loss=take("failOnDataLoss", True, _bool),
        body_bytes_max=take("payload", None, _payload),
        include_headers=take("includeHeaders", False, _bool),
        ack_mode=take("ackMode", AckMode.COMMITTED, _one_of(AckMode)),
        lease=take("lease", "ingest", _text),
        lease_ttl_s=take("leaseTtl", 30.0, _duration),
        read_from=take("readFrom", ReadFrom.LEADER, _one_of(ReadFrom)),
        encoding=take("encoding", PayloadEncoding.AUTO, _one_of(PayloadEncoding)),
        request_timeout_s=take("requestTimeout", 30.0, _duration),
    )


def _queues_of(given: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    named = [name for name in ("queue", "queues", "queuePattern") if name in given]
    if len(named) != 1:
        raise OptionError(
            named[1] if named else "queue",
            "give one of 'queue', 'queues' (with commas) and 'queuePattern'"
            + (f", not {' and '.join(named)}" if named else ""),
        )
    [name] = named
    value = _text(name, given[name])
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


def _endpoints(given: Mapping[str, str]) -> tuple[str, ...]:
    value = given.get("endpoints", "")
    found = tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip()))
    if not found:
        raise OptionError("endpoints", "give the address of at least one node, as host:port")
    for address in found:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise OptionError("endpoints", f"{address!r} is not host:port")
    return found


# --- values ---


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise OptionError(name, "it is empty")
    return value.strip()


def _positive(name: str, value: str) -> int:
    if not value.strip().isdecimal() or int(value) < 1:
        raise OptionError(name, f"{value!r} is not a number of 1 or more")
    return int(value)


def _bool(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(name, f"{value!r} is neither true nor false")
    return value.strip().lower() == "true"


def _size(name: str, value: str) -> int:
    found = _SIZE.fullmatch(value.strip())
    size = int(found[1]) * _UNITS[found[2].lower()] if found else 0
    if not size:
        raise OptionError(name, f"{value!r} is not a size, such as 67108864, 512k or 64m")
    return size


def _duration(name: str, value: str) -> float:
    found = _DURATION.fullmatch(value.strip())
    seconds = float(found[1]) * _SECONDS[(found[2] or "").lower()] if found else 0.0
    if not seconds:
        raise OptionError(name, f"{value!r} is not a duration, such as 30s, 500ms or 2m")
    return seconds


def _payload(name: str, value: str) -> int | None:
    """How many bytes of each body; None: all."""
    text = value.strip().lower()
    if text in ("full", "none"):
        return 0 if text == "none" else None
    kind, colon, count = text.partition(":")
    if kind != "head" or not colon:
        raise OptionError(name, f"{value!r} is none of 'full', 'none' and 'head:N'")
    return _positive(name, count)


def _one_of(kind: type[E]) -> Callable[[str, str], E]:
    def read(name: str, value: str) -> E:
        try:
            return kind(value.strip().lower())
        except ValueError:
            names = ", ".join(repr(each.value) for each in kind)
            raise OptionError(name, f"{value!r} is none of {names}") from None

    return read


def _offsets(name: str, value: str) -> Offsets:
    text = value.strip()
    if not text.startswith("{"):
        return _one_of(StartingOffsets)(name, text)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"no JSON: {error}") from error
    for queue, position in found.items():
        if type(position) is not int or position < 0:
            raise OptionError(name, f"queue {queue!r}: {position!r} is not a position")
    return dict(found)
