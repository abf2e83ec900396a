"""Spark's columns and Arrow's are the same."""

from __future__ import annotations

import pyarrow
import pytest

from ringmq_pipeline import schema

# What Spark makes of its types in Arrow (pyspark.sql.pandas.types.to_arrow_type).
ARROW_OF_SPARK = {
    "STRING": pyarrow.string(),
    "BIGINT": pyarrow.int64(),
    "BINARY": pyarrow.binary(),
    "BOOLEAN": pyarrow.bool_(),
    "TIMESTAMP": pyarrow.timestamp("us", tz="UTC"),
    "MAP<STRING, STRING>": pyarrow.map_(pyarrow.string(), pyarrow.string()),
}


@pytest.mark.parametrize("include_headers", [False, True])
@pytest.mark.parametrize("include_properties", [False, True])
def test_the_two_agree(include_headers: bool, include_properties: bool) -> None:
    included = {"include_headers": include_headers, "include_properties": include_properties}
    columns = schema.columns(**included)
    arrow = schema.arrow_schema(**included)
    assert [field.name for field in arrow] == [each.name for each in columns]
    assert [field.type for field in arrow] == [ARROW_OF_SPARK[each.ddl] for each in columns]
    assert [field.nullable for field in arrow] == [each.nullable for each in columns]
    assert ("headers" in arrow.names) == include_headers
    assert ("encoded_properties" in arrow.names) == include_properties


def test_the_ddl_names_each_column_once() -> None:
    text = schema.ddl(include_headers=True, include_properties=True)
    names = [part.split()[0] for part in text.split(", ") if not part.startswith("STRING>")]
    assert len(set(names)) == len(names)
    assert "position BIGINT NOT NULL" in text
