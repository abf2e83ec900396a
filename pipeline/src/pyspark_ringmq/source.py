"""What Spark asks the data source for. It calls methods by keyword, so their names are fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from ringmq_pipeline import options as source_options
from ringmq_pipeline.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "ringmq"


class DefaultSource(DataSource):
    """See docs/pipeline.md for the options. Whatever connects is imported when it is needed: Spark
    imports this for every query, of any format."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        options = source_options.parse(self.options)
        return ddl(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_ringmq.batch import BatchReader

        return BatchReader(source_options.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_ringmq.stream import StreamReader

        return StreamReader(source_options.parse(self.options))
