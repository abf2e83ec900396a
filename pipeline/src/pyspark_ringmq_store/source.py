"""What Spark asks the data source for. It calls methods by keyword, so their names are fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from pyspark_ringmq_store.columns import MESSAGES, PIECES, QUEUES
from pyspark_ringmq_store.options import Rows, parse
from ringmq_pipeline.schema import ddl_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "ringmq_store"
_COLUMNS = {Rows.MESSAGES: MESSAGES, Rows.PIECES: PIECES, Rows.QUEUES: QUEUES}


class DefaultSource(DataSource):
    """See docs/pipeline.md for the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ddl_of(_COLUMNS[parse(self.options).rows])

    def reader(self, schema: StructType) -> DataSourceReader:
        # The node's code is imported when it is needed: Spark imports this for every query.
        from pyspark_ringmq_store.planning import StoreReader

        return StoreReader(parse(self.options))
