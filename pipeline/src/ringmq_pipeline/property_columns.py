"""The properties of messages as columns of a row. A value that many messages share is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow
from google.protobuf.message import DecodeError

from ringmq.model.fields import fields_from_wire, shown_field
from ringmq.v1 import common_pb2 as common

_TEXTS: Final = ("message_id", "correlation_id", "reply_to", "content_type")
# Spark's times end with the year 9999. A publisher may set any number, as one in nanoseconds: no
# reader may stumble over it.
_TIMES_END_MS: Final = 253_402_300_800_000
PROPERTY_COLUMNS: Final = (*_TEXTS, "published_at", "headers")


def property_columns(
    encoded: pyarrow.Array, names: Sequence[str], schema: pyarrow.Schema
) -> dict[str, pyarrow.Array]:
    """The columns `names` of serialized properties, with their types in `schema`. Raises
    `ValueError` for bytes that are none."""
    if encoded.null_count == len(encoded):
        return {name: pyarrow.nulls(len(encoded), schema.field(name).type) for name in names}
    values, indices = decoded(encoded)
    found = {}
    for name in names:
        if name in _TEXTS:
            listed = [getattr(value, name) or None for value in values]
        elif name == "published_at":
            listed = [
                value.timestamp_ms * 1000 if 0 < value.timestamp_ms < _TIMES_END_MS else None
                for value in values
            ]
        else:
            listed = [
                [(key, shown_field(each)) for key, each in fields_from_wire(value.headers).items()]
                for value in values
            ]
        found[name] = _column(listed, indices, schema.field(name).type)
    return found


def _column(listed: Sequence[Any], indices: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    """The values of rows, by their indices in `listed`: as a rule one for all rows, or none."""
    count = len(indices)
    if all(value is None for value in listed):
        return pyarrow.nulls(count, kind)
    if len(listed) == 1 and not indices.null_count:
        return pyarrow.repeat(pyarrow.scalar(listed[0], kind), count)
    values = pyarrow.array(listed, kind)
    # As many as rows: their indices count up.
    return values if len(listed) == count else values.take(indices)


def decoded(encoded: pyarrow.Array) -> tuple[list[common.Properties], pyarrow.Array]:
    """The different values, and the index of each row's; null where it has none. Many messages have
    the same, as those of one batch of a publisher often do. Raises `ValueError`."""
    coded = encoded.dictionary_encode()
    try:
        values = [common.Properties.FromString(value) for value in coded.dictionary.to_pylist()]
    except DecodeError as error:
        raise ValueError(f"no ringmq.v1.Properties: {error}") from error
    return values, coded.indices
