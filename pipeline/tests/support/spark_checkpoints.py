"""A checkpoint's logs as Spark 4.3 writes them."""

from __future__ import annotations

import json
from pathlib import Path

from ringmq_pipeline.offsets import QueueOffset, to_json


def checkpoint_of(
    folder: Path, *ends: int, done: int, watermark_ms: int = 0, timestamp_ms: int = 1
) -> Path:
    """Batches that end there; the first `done` are committed."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    (folder / "metadata").write_text('{"id":"query"}')
    times = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": timestamp_ms})
    for number, end in enumerate(ends):
        offset = json.dumps(to_json({"a": QueueOffset("id", 0, end)}))
        (folder / "offsets" / str(number)).write_text(f"v1\n{times}\n{offset}")
        # Beside each file is its checksum.
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < done:
            text = json.dumps({"nextBatchWatermarkMs": watermark_ms})
            (folder / "commits" / str(number)).write_text(f"v1\n{text}")
    return folder
