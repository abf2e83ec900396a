"""From bodies to values, and the bodies that aren't what they should be. DataFrame to DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VALUE: Final = "value"
ERROR: Final = "error"
_TEXT: Final = "_text"
_BROKEN: Final = "_broken"


class Decoding(Enum):
    """`json`: a body is one JSON value. `text`: it is UTF-8. `none`: it is bytes."""

    NONE = "none"
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Decoded:
    """`good` has the column `value` more; `bad` has `error`. `bad`: None, as all are good."""

    good: DataFrame
    bad: DataFrame | None


def decode(frame: DataFrame, how: Decoding, value_schema: str = "") -> Decoded:
    """`value_schema`: of JSON objects, as Spark's DDL; without it, JSON stays text."""
    if how is Decoding.NONE:
        return Decoded(frame, None)
    texts = frame.withColumn(_TEXT, sql.try_validate_utf8(sql.col("body").cast("string")))
    value: Column = sql.col(_TEXT)
    error: Column = sql.when(sql.col(_TEXT).isNull(), "the body is no UTF-8")
    if how is Decoding.JSON and value_schema:
        parsed = f"{value_schema}, {_BROKEN} STRING"
        texts = texts.withColumn(
            VALUE,
            sql.from_json(
                _TEXT, parsed, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
            ),
        )
        broken = sql.col(VALUE).isNull() | sql.col(f"{VALUE}.{_BROKEN}").isNotNull() | ~_is_one()
        error = error.when(broken, f"the body is no JSON object of {value_schema}")
        value = sql.col(VALUE).dropFields(_BROKEN)
    elif how is Decoding.JSON:
        is_json = sql.try_parse_json(_TEXT).isNotNull() & _is_one()
        error = error.when(~is_json, "the body is no JSON")
    judged = texts.withColumn(ERROR, error)
    good = judged.where(sql.col(ERROR).isNull()).withColumn(VALUE, value).drop(_TEXT, ERROR)
    bad = judged.where(sql.col(ERROR).isNotNull()).drop(_TEXT, VALUE)
    return Decoded(good, bad)


def _is_one() -> Column:
    """Whether the text is one JSON value and no more. Spark's functions read the first value, and
    don't look behind it.

    Within an array and within an object, a text that ends either of them early spoils the other."""
    text = sql.col(_TEXT)
    in_array = sql.json_array_length(sql.concat(sql.lit("["), text, sql.lit("]"))) == 1
    in_object = sql.size(sql.json_object_keys(sql.concat(sql.lit('{"":'), text, sql.lit("}")))) == 1
    return sql.coalesce(in_array & in_object, sql.lit(False))


def without_repeats(frame: DataFrame, window: str) -> DataFrame:
    """Of messages with the same id that arrive within `window`, the first; and all without an id.

    The window is of the batches' own times, which Spark's offset log keeps: a message can't come
    too late for it, as it could by the time that its publisher has set, and be dropped."""
    arrived = "_arrived"
    key = sql.coalesce(
        sql.concat(sql.lit("id:"), "message_id"),
        sql.concat_ws(":", sql.lit("position"), "epoch", "position"),
    )
    return (
        frame.withColumn(arrived, sql.current_timestamp())
        .withColumn("_key", key)
        .withWatermark(arrived, window)
        .dropDuplicatesWithinWatermark(["queue", "_key"])
        .drop(arrived, "_key")
    )
