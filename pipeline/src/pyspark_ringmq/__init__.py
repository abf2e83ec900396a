"""The data source `ringmq` for Spark: queues as tables and streams, and as sinks.

Spark finds it by the name of this module, so `spark.read.format("ringmq")` works without a
registration. Modules, in the order in which a query meets them:

source      what Spark asks for: a reader or a writer
planning    from the options and the queues' positions to ranges
batch       the reader of a batch query
stream      the reader of a streaming query: offsets, limits, and when messages may leave the queue
rows        the messages of a range as Arrow batches
writing     the sink: rows as messages, once each whatever is run again
sending     the sink's streams, one for each queue
"""

from pyspark_ringmq.source import DefaultSource

__all__ = ["DefaultSource"]
