"""What an ingest notes in its checkpoint, beside Spark's own logs.

Spark's logs say which batch is planned. They don't say what was judged bad in it, nor whether the
table had rows of the batches before. A note is on the disk before the first table has its batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.sinks.batches import make_durable

FILE: Final = "ringmq.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Note:
    """`batch`: the newest one that a table may have, judged by `decoding`: options, as the user
    has given them. `in_table`: the newest one of which the main table has rows. -1: none yet, or
    by a version that didn't note it."""

    batch: int = -1
    decoding: str = ""
    in_table: int = -1

    def check_decoding(self, number: int, decoding: str) -> None:
        """Raises `JobError` if tables may have a part of the batch by another decoding: they skip
        it by its number, and a body that is bad by one and good by the other would be in none."""
        if number == self.batch and decoding != self.decoding:
            raise JobError(
                f"batch {number} was begun with {self.decoding}, and may be in a table by that: "
                f"end it with the same, and go on with {decoding} then"
            )


def read_note(checkpoint: Path) -> Note:
    """Raises `JobError` for a file that isn't one."""
    file = checkpoint / FILE
    try:
        found = json.loads(file.read_text())
        if found.pop("version") != VERSION:
            raise JobError(
                f"{file}: of another version than {VERSION}: run the ringmq that wrote it"
            )
        return Note(**found)
    except FileNotFoundError:
        return Note()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise JobError(f"{file} is no note of an ingest: {error}") from error


def write_note(checkpoint: Path, note: Note) -> None:
    """It survives a power cut, as a whole or as it was before."""
    draft = checkpoint / f".{FILE}.new"
    draft.write_text(json.dumps({"version": VERSION} | asdict(note)))
    make_durable([draft])
    draft.replace(checkpoint / FILE)
    make_durable([checkpoint])
