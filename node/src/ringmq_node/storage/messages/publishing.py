"""The maps of a compaction: the thread's part of a `PublishJob`. See `compaction`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.files import NEW_SUFFIX, data_name, map_name
from ringmq_node.storage.messages.relocation import LOST, Table
from ringmq_node.storage.messages.steps import Moves, PublishJob, Rebuilt

# File, ordinal and offset of a record at its new place.
Row = tuple[int, int, int]


def publish(disk: Disk, job: PublishJob) -> None:
    """Runs in a thread; raises `OSError`."""
    target = job.directory / data_name(job.target)
    if job.persistent and job.target_written:
        # Before any map mentions the target: a map is believed at a restart, and its victim may be
        # gone by then.
        disk.sync(target)
        disk.sync(job.directory)
    places = {moves.number: _places_of(moves, job.target) for moves in job.indirect}
    job.rebuilt = [_table_of(moves, job.target) for moves in job.direct]
    job.rebuilt += [_led_anew(number, table, places) for number, table in job.tables]
    if not job.persistent:
        return
    for rebuilt in job.rebuilt:
        path = job.directory / map_name(rebuilt.number)
        new = path.with_name(path.name + NEW_SUFFIX)
        disk.write(new, 0, [relocation.encode(rebuilt.number, rebuilt.table)], sync=True)
        disk.rename(new, path)
    # The loop removes the victims when this step is done: all renames have to be durable by then.
    disk.sync(job.directory)


def _places_of(moves: Moves, target: int) -> dict[int, Row]:
    """The row for each record of a victim that was copied or lost, by its old ordinal."""
    moved = zip(moves.ordinals, moves.new_ordinals, moves.offsets, strict=True)
    places = {old: (target, ordinal, offset) for old, ordinal, offset in moved}
    return places | dict.fromkeys(moves.lost, (LOST, 0, 0))


def _table_of(moves: Moves, target: int) -> Rebuilt:
    places = _places_of(moves, target)
    kept = sorted(places)
    return _rebuilt(moves.number, kept, kept, [places[ordinal] for ordinal in kept])


def _led_anew(number: int, table: Table, places: dict[int, dict[int, Row]]) -> Rebuilt:
    """A table that leads into victims, with the records of these at their new places.

    A row whose record was neither copied nor lost was not live. It is left out.
    """
    kept: list[int] = []
    rows: list[Row] = []
    columns = (table.files, table.new_ordinals, table.offsets)
    for row, old in enumerate(zip(*columns, strict=True)):
        file, ordinal, _ = old
        new = places[file].get(ordinal) if file in places else old
        if new is not None:
            kept.append(row)
            rows.append(new)
    return _rebuilt(number, kept, [table.ordinals[row] for row in kept], rows)


def _rebuilt(
    number: int, kept: Sequence[int], ordinals: Sequence[int], rows: Sequence[Row]
) -> Rebuilt:
    files, new_ordinals, offsets = zip(*rows, strict=True) if rows else ((), (), ())
    table = Table(
        array("I", ordinals), array("I", files), array("I", new_ordinals), array("I", offsets)
    )
    return Rebuilt(number, table, array("I", kept))
