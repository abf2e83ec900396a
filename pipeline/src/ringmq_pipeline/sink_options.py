"""The options of the sink `ringmq`, from the strings that Spark passes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    "sequenceColumn",
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
# What Spark calls the types that each of them may have. `void` is that of a column of nulls.
_TYPES: Final = {
    "queue": ("string",),
    "body": ("binary", "string"),
    "persistent": ("boolean",),
    "published_at": ("timestamp", "timestamp_ntz", "date", "void"),
    **dict.fromkeys(TEXTS, ("string", "void")),
    "headers": (
        *(f"map<string,{kind}>" for kind in ("string", "binary", "boolean", "bigint", "int")),
        *(f"map<string,{kind}>" for kind in ("smallint", "tinyint", "double", "float")),
        "void",
    ),
    ENCODED.name: ("binary", "void"),
}
_NUMBERS: Final = ("bigint", "int", "smallint", "tinyint")


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
    # Names the column of numbers that are the sequences of rows; empty: rows are counted.
    sequence_column: str
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
        sequence_column=named("sequenceColumn"),
        window_messages=number("confirmWindow", 10_000),
        window_bytes=size("confirmWindowBytes", window),
        max_rate_per_task=number("maxRatePerTask", 0),
        request_timeout_s=duration("requestTimeout", timeout),
    )


def column_names(names: Sequence[str]) -> list[str]:
    """The names of columns in lower case, as the sink looks for them: Spark doesn't tell the case
    apart. Where it was told to, a column that has such a name already comes first."""
    return [name if name.lower() in names else name.lower() for name in names]


def column_called(given: str, names: Sequence[str]) -> str:
    """Its name among the `column_names`."""
    return given if given in names else given.lower()


def check_columns(options: SinkOptions, given: Sequence[str]) -> None:
    """Raises `OptionError` if rows with these columns can't be published."""
    names = column_names(given)
    named = {
        option: column_called(column, names) for option, column in _columns_named(options).items()
    }
    for name in (*PUBLISHED, *named.values()):
        if names.count(name) > 1:
            raise OptionError(name, f"several columns have this name, among {given}")
    if "body" not in names:
        raise OptionError("body", f"a row to publish has a column `body`, not only {given}")
    for option, name in named.items():
        if name not in names:
            raise OptionError(option, f"there is no such column among {given}")
    if not options.queue and "queue" not in names:
        raise OptionError("queue", "name the queue here, or in a column `queue`")


def _columns_named(options: SinkOptions) -> dict[str, str]:
    """By the option that names it."""
    found = {"producerColumn": options.producer_column, "sequenceColumn": options.sequence_column}
    return {option: column for option, column in found.items() if column}


def check_types(options: SinkOptions, columns: Mapping[str, str]) -> None:
    """`columns`: Spark's names of their types. Raises `OptionError` for one that can't be
    published: a task would end with an error of pyarrow or of the client, after others are done."""
    names = column_names([*columns])
    allowed = {name: _TYPES[name] for name in PUBLISHED if name != "queue" or not options.queue}
    for option, column in _columns_named(options).items():
        kinds = ("string",) if option == "producerColumn" else _NUMBERS
        allowed[column_called(column, names)] = kinds
    for name, (given, kind) in zip(names, columns.items(), strict=True):
        # Texts may have a collation.
        plain = re.sub(r"\bstring collate \w+", "string", kind)
        if name in allowed and plain not in allowed[name]:
            raise OptionError(
                given,
                f"the column is of the type {kind}, and should be {' or '.join(allowed[name])}",
            )
