"""The columns of a row, once, for Spark (as DDL) and for Arrow.

Spark refuses an Arrow batch whose types differ from the declared ones by anything, and looks at the
first batch only: so both come from one table. pyarrow is imported where it is needed, as the
driver of a query plans without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Column:
    """`ddl`: Spark's type. `arrow`: the expression of Arrow's, as `_arrow_type` reads it."""

    name: str
    ddl: str
    arrow: str
    nullable: bool = True


COLUMNS: Final = (
    Column("queue", "STRING", "string", nullable=False),
    # Of the numbering: positions of different epochs are different messages.
    Column("epoch", "BIGINT", "int64", nullable=False),
    Column("position", "BIGINT", "int64", nullable=False),
    Column("body", "BINARY", "binary"),
    Column("body_size", "BIGINT", "int64", nullable=False),
    Column("redelivered", "BOOLEAN", "bool_", nullable=False),
    Column("persistent", "BOOLEAN", "bool_", nullable=False),
    Column("message_id", "STRING", "string"),
    Column("correlation_id", "STRING", "string"),
    Column("reply_to", "STRING", "string"),
    Column("content_type", "STRING", "string"),
    # As its publisher has set it.
    Column("published_at", "TIMESTAMP", "timestamp_us_utc"),
)
# With the option `includeHeaders`.
HEADERS: Final = Column("headers", "MAP<STRING, STRING>", "map_string_string")
# With the option `includeProperties`: a `ringmq.v1.Properties`, which has what no other column says
# (priority, time to live, type, ...), and the headers with their types.
ENCODED: Final = Column("encoded_properties", "BINARY", "binary")


def columns(*, include_headers: bool, include_properties: bool = False) -> tuple[Column, ...]:
    further = ((HEADERS, include_headers), (ENCODED, include_properties))
    return (*COLUMNS, *(column for column, included in further if included))


def ddl(*, include_headers: bool, include_properties: bool = False) -> str:
    """For `DataSource.schema`."""
    return ddl_of(columns(include_headers=include_headers, include_properties=include_properties))


def ddl_of(columns: Sequence[Column]) -> str:
    return ", ".join(
        f"{each.name} {each.ddl}{'' if each.nullable else ' NOT NULL'}" for each in columns
    )


def arrow_schema(*, include_headers: bool, include_properties: bool = False) -> Any:
    """A `pyarrow.Schema`. Raises `ImportError` where pyarrow isn't installed."""
    return arrow_schema_of(
        columns(include_headers=include_headers, include_properties=include_properties)
    )


def arrow_schema_of(columns: Sequence[Column]) -> Any:
    """The same, of any columns."""
    arrow = import_module("pyarrow")
    return arrow.schema(
        [
            arrow.field(each.name, _arrow_type(arrow, each.arrow), nullable=each.nullable)
            for each in columns
        ]
    )


def _arrow_type(arrow: Any, name: str) -> Any:
    if name == "timestamp_us_utc":
        return arrow.timestamp("us", tz="UTC")
    if name == "map_string_string":
        return arrow.map_(arrow.string(), arrow.string())
    return getattr(arrow, name)()
