from __future__ import annotations

import pyarrow

from ringmq.v1 import common_pb2 as common
from ringmq_pipeline.property_columns import property_columns
from ringmq_pipeline.schema import arrow_schema

LAST_MS = 253_402_300_799_999


def test_a_number_that_is_no_time_is_null() -> None:
    """Of a publisher that has set nanoseconds, for example. It stopped all readers of its queue."""
    given = (1, LAST_MS, LAST_MS + 1, 1_700_000_000_000_000_000, (1 << 64) - 1, 0)
    encoded = [common.Properties(timestamp_ms=each).SerializeToString() for each in given]
    schema = arrow_schema(include_headers=False)
    columns = property_columns(pyarrow.array(encoded, pyarrow.binary()), ["published_at"], schema)
    times = columns["published_at"]
    assert times.type == schema.field("published_at").type
    expected = [1000, LAST_MS * 1000, None, None, None, None]
    assert times.cast(pyarrow.int64()).to_pylist() == expected
    assert times.to_pylist()[1].year == 9999
