"""What Spark asks the data source for. It calls methods by keyword, so their names are fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from ringmq_pipeline import options as source_options
from ringmq_pipeline import sink_options
from ringmq_pipeline.option_values import OptionError
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
        return ddl(
            include_headers=options.include_headers, include_properties=options.include_properties
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_ringmq.batch import BatchReader

        return BatchReader(source_options.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_ringmq.stream import StreamReader

        return StreamReader(source_options.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_ringmq.writing import BatchWriter

        return BatchWriter(self._sink_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_ringmq.writing import StreamingWriter

        return StreamingWriter(self._sink_options(schema, overwrite))

    def _sink_options(self, schema: StructType, overwrite: bool) -> sink_options.SinkOptions:
        if overwrite:
            raise OptionError("mode", "messages are added to a queue: write with mode 'append'")
        options = sink_options.parse(self.options)
        sink_options.check_columns(options, schema.fieldNames())
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        sink_options.check_types(options, types)
        return options
