"""The options of the sink `ringmq`, from the strings that Spark passes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringmq_pipeline.option_values import (
    OptionError,
    duration,
    endpoints,
    known_only,
    positive,
    queue_name,
    size,
    text,
)
from ringmq_pipeline.schema import ENCODED

KNOWN: Final = (
    "endpoints",
    "queue",
    "vhost",
    "producerId",
    "producerColumn",
    "confirmWindow",
    "confirmWindowBytes",
    "maxRatePerTask",
    "requestTimeout",
)
# How fast, not what or where: they may change from one life of a job to the next.
PACE: Final = ("confirmWindow", "confirmWindowBytes", "maxRatePerTask", "requestTimeout")

# The properties that are texts.
TEXTS: Final = ("message_id", "correlation_id", "reply_to", "content_type")
# The columns that the sink looks at.
PUBLISHED: Final = ("queue", "body", "persistent", "published_at", *TEXTS, "headers", ENCODED.name)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Sizes in bytes, times in seconds."""

    endpoints: tuple[str, ...]
    # Empty: the column `queue` says it.
    queue: str
    vhost: str
    # Empty: each write is a producer of its own.
    producer_id: str
    # Names the column of texts that divides a task's rows among producers; empty: a task is one.
    producer_column: str
    # Messages and bytes on their way to be confirmed, of one task.
    window_messages: int
    window_bytes: int
    # Messages a second; 0: any number.
    max_rate_per_task: int
    request_timeout_s: float


def parse(options: Mapping[str, str]) -> SinkOptions:
    """Raises `OptionError`."""
    given = known_only(options, KNOWN, "the sink ringmq")

    def number(name: str, default: int) -> int:
        return positive(name, given[name]) if name in given else default

    def named(name: str) -> str:
        return text(name, given[name]) if name in given else ""

    timeout, window = given.get("requestTimeout", "60s"), given.get("confirmWindowBytes", "16m")
    return SinkOptions(
        endpoints=endpoints(given),
        queue=queue_name("queue", given["queue"]) if "queue" in given else "",
        vhost=given.get("vhost", ""),
        producer_id=named("producerId"),
        producer_column=named("producerColumn"),
        window_messages=number("confirmWindow", 10_000),
        window_bytes=size("confirmWindowBytes", window),
        max_rate_per_task=number("maxRatePerTask", 0),
        request_timeout_s=duration("requestTimeout", timeout),
    )


def check_columns(options: SinkOptions, names: list[str]) -> None:
    """Raises `OptionError` if rows with these columns can't be published."""
    if "body" not in names:
        raise OptionError("body", f"a row to publish has a column `body`, not only {names}")
    if options.producer_column and options.producer_column not in names:
        raise OptionError("producerColumn", f"there is no such column among {names}")
    if not options.queue and "queue" not in names:
        raise OptionError("queue", "name the queue here, or in a column `queue`")
