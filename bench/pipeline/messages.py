"""The messages of a run: random bodies, in a few Parquet files as an ingest leaves them."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet

from bench.pipeline.generated import generated_batch

# As many as a batch of an ingest has by default.
FILE_ROWS = 50_000


def write_table(folder: Path, count: int, size: int) -> None:
    """Each file has the same bodies in another order of positions: nothing compares files."""
    folder.mkdir(parents=True)
    rows = pyarrow.table(generated_batch(min(count, FILE_ROWS), size))
    place = rows.schema.get_field_index("position")
    for number, first in enumerate(range(0, count, FILE_ROWS)):
        share = rows.slice(0, min(FILE_ROWS, count - first))
        positions = pyarrow.array(range(first, first + share.num_rows), pyarrow.int64())
        share = share.set_column(place, rows.schema.field(place), positions)
        pyarrow.parquet.write_table(share, folder / f"{number:05}.parquet", compression="zstd")
