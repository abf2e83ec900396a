"""deltalake names a table's files; pyarrow's own file system, or Spark, reads them.

Where deltalake reads rows itself, pyarrow's threads hold Python buffers. One that is freed while
the interpreter ends aborts the process: docs/decisions/0200. This looks at text rather than syntax,
as tests have programs in strings.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READS_ROWS = re.compile(r"\.to_(?:pyarrow_table|pyarrow_dataset|pandas)\(")
SOURCES = [
    path
    for place in ("pipeline", "cluster-tests", "bench", "examples", "deploy")
    for path in sorted((ROOT / place).rglob("*.py"))
    if path != Path(__file__).resolve()
]


def test_no_rows_are_read_through_deltalake() -> None:
    assert SOURCES
    found = [path for path in SOURCES if READS_ROWS.search(path.read_text())]
    assert not found, "read the files of `file_uris()` instead"


@pytest.mark.parametrize("source", ["t.to_pyarrow_table(columns=[])", "DeltaTable(p).to_pandas()"])
def test_a_read_through_deltalake_is_seen(source: str) -> None:
    assert READS_ROWS.search(source)
