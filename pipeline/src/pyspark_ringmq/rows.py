"""The messages of a range as Arrow batches with the source's columns.

Bodies come from the node as Arrow where it has pyarrow, else as messages with their bodies
together, and pass through untouched. Nothing is done in Python for each message, but for those with
properties: there, once for each different value. Small pieces are put together, as Spark pays for
each batch that it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow

import ringmq
from pyspark_ringmq.planning import report
from ringmq_pipeline.connecting import reader_for
from ringmq_pipeline.offsets import DELETED, DataLoss, DataLossError, QueueOffset, QueueRange
from ringmq_pipeline.options import PayloadEncoding, ReadFrom, SourceOptions
from ringmq_pipeline.property_columns import PROPERTY_COLUMNS, property_columns
from ringmq_pipeline.schema import ENCODED, arrow_schema

log = logging.getLogger(__name__)

BATCH_ROWS = 10_000
# Less than a full piece of a browse, so that these go on as they are. Larger batches fall out of
# the processor's caches between Python, the JVM and its rows.
BATCH_BYTES = 768 << 10

_SOURCES = {
    ReadFrom.LEADER: ringmq.BrowseSource.MASTER,
    ReadFrom.MIRROR: ringmq.BrowseSource.MIRROR,
    ReadFrom.ANY: ringmq.BrowseSource.ANY,
}


def read_range(options: SourceOptions, whole: QueueRange | None) -> Iterator[pyarrow.RecordBatch]:
    """Raises `DataLossError` for messages that are gone, unless the query may skip them."""
    if whole is None:
        return
    schema = arrow_schema(
        include_headers=options.include_headers, include_properties=options.include_properties
    )
    gathered: list[pyarrow.RecordBatch] = []
    rows = size = 0
    for piece in _pieces(options, whole):
        for first, last in piece.damaged:
            why = "no replica has their bodies any more"
            report(options, DataLoss(whole.queue, first, last + 1, why))
        if piece.rows is None:
            continue
        gathered.append(piece.rows)
        rows += piece.rows.num_rows
        size += piece.rows.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _with_columns(gathered, whole, schema)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _with_columns(gathered, whole, schema)


# --- pieces ---


def _pieces(options: SourceOptions, whole: QueueRange) -> Iterator[ringmq.BrowsedRows]:
    """All of the range. Where messages are gone and the query may skip them, it goes on behind."""
    at, upto = whole.first, whole.end
    while at < whole.end:
        try:
            for piece in _browse(options, whole, at, upto):
                at = piece.end
                yield piece
            upto = whole.end if at >= upto else upto
        except ringmq.QueueNotFoundError:
            report(options, DataLoss(whole.queue, at, whole.end, DELETED))
            return
        except ringmq.PositionsMovedError as error:
            # The rest of the range belongs to nobody any more, also for a query that may skip.
            report(options, DataLoss(whole.queue, at, whole.end, error.message))
            return
        except ringmq.PositionsGoneError as error:
            first = max(at, error.first)
            loss = DataLoss(whole.queue, first, max(first, error.last) + 1, error.message)
            if options.fail_on_data_loss:
                raise DataLossError(loss) from error
            if at < first < upto:
                # Refused is all of what was asked for, also what is there before the loss.
                upto = first
                continue
            report(options, loss)
            at, upto = loss.end, whole.end


def _browse(
    options: SourceOptions, whole: QueueRange, at: int, upto: int
) -> Iterator[ringmq.BrowsedRows]:
    numbering = QueueOffset(whole.queue_id, whole.epoch, whole.first)
    return reader_for(options, whole.queue, numbering).browse_arrow(
        at,
        upto,
        source=_SOURCES[options.read_from],
        body_bytes_max=options.body_bytes_max,
        columns_by_node=options.encoding is PayloadEncoding.ARROW,
    )


# --- columns ---


def _with_columns(
    pieces: list[pyarrow.RecordBatch], whole: QueueRange, schema: pyarrow.Schema
) -> pyarrow.RecordBatch:
    piece = pieces[0] if len(pieces) == 1 else pyarrow.concat_batches(pieces)
    count = piece.num_rows
    columns = {
        "queue": pyarrow.repeat(whole.queue, count),
        "epoch": pyarrow.repeat(pyarrow.scalar(whole.epoch, pyarrow.int64()), count),
    }
    for name in ("position", "body", "body_size", "redelivered", "persistent"):
        columns[name] = piece.column(name)
    names = [name for name in PROPERTY_COLUMNS if name in schema.names]
    encoded = piece.column("properties")
    columns |= property_columns(encoded, names, schema)
    if ENCODED.name in schema.names:
        columns[ENCODED.name] = encoded
    return pyarrow.record_batch([columns[name] for name in schema.names], schema=schema)
