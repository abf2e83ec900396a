from __future__ import annotations

import pyarrow
from hypothesis import given
from hypothesis import strategies as st

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


VALUES = st.builds(
    common.Properties,
    message_id=st.sampled_from(["", "m1", "m2"]),
    content_type=st.sampled_from(["", "text/plain"]),
    timestamp_ms=st.sampled_from([0, 1, LAST_MS + 1]),
)


@given(st.lists(VALUES | st.none(), min_size=1, max_size=12), st.integers(1, 3), st.booleans())
def test_columns_are_those_of_the_rows_one_by_one(
    drawn: list[common.Properties | None], times: int, is_shared: bool
) -> None:
    """One value for all, a value for each, and all between."""
    values = [drawn[0]] * len(drawn) if is_shared else drawn * times
    names = ["message_id", "content_type", "published_at", "reply_to"]
    encoded = [None if each is None else each.SerializeToString() for each in values]
    schema = arrow_schema(include_headers=False)
    columns = property_columns(pyarrow.array(encoded, pyarrow.binary()), names, schema)
    for name, column in columns.items():
        column.validate(full=True)
        assert column.type == schema.field(name).type
    found = [
        (row["message_id"], row["content_type"], row["published_at"], row["reply_to"])
        for row in pyarrow.table(
            columns | {"published_at": columns["published_at"].cast(pyarrow.int64())}
        ).to_pylist()
    ]
    assert found == [
        (None,) * 4
        if each is None
        else (
            each.message_id or None,
            each.content_type or None,
            1000 if each.timestamp_ms == 1 else None,
            None,
        )
        for each in values
    ]
