"""The data source `ringmq_store` for Spark: the data directories of nodes as tables, read only.

Spark finds it by the name of this module. It reads stopped nodes and copies, with the node's own
definitions of the files.

source      what Spark asks for
planning    from the options to tasks: which queues and segments each reads
rows        pieces of a store as Arrow batches
columns     the columns of the two kinds of rows
"""

from pyspark_ringmq_store.source import DefaultSource

__all__ = ["DefaultSource"]
