"""`ringmq store inspect`: the files of a directory, or the records of a queue or file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ringmq_node.cli.options import json_option
from ringmq_node.cli.output import emit_facts, emit_json, emit_table, size_text
from ringmq_node.cli.store.opened import directory_argument, opened
from ringmq_node.storage.offline.faults import plain
from ringmq_node.storage.offline.inspection import (
    FileInspection,
    FilesInspection,
    QueueInspection,
    Ranges,
    inspect_file,
    inspect_files,
    inspect_queue,
)
from ringmq_node.storage.offline.shown import FileSummary, ShownRecord

FILE_COLUMNS = ("file", "kind", "of", "bytes")
SUMMARY_COLUMNS = (
    *("file", "kind", "number", "bytes", "records"),
    *("messages", "live", "garbage", "faults"),
)
RECORD_COLUMNS = (
    *("file", "offset", "length", "kind", "number", "epoch"),
    *("flags", "messages", "live", "bytes", "says"),
)


@click.command()
@directory_argument
@click.option(
    "--queue", metavar="NAME", help="The state, files and records of this queue; or its id."
)
@click.option(
    "--file",
    "path",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="This file's records; the path from DIR.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Print so many files, records and ranges; count all.",
)
@json_option
def inspect(
    directory: Path, queue: str | None, path: Path | None, limit: int, as_json: bool
) -> None:
    """Show the directory's files, the records of one queue, or the records of one file.

    Damaged bytes are shown in their place. Only `verify` says whether the directory is sound.
    """
    if queue is not None and path is not None:
        raise click.UsageError("--queue and --file exclude each other")
    with opened(directory) as found:
        if queue is not None:
            of_queue = inspect_queue(found, queue, limit)
            emit_json(asdict(of_queue)) if as_json else _show_queue(of_queue)
        elif path is not None:
            of_file = inspect_file(found, path, limit)
            emit_json(asdict(of_file)) if as_json else _show_file(of_file)
        else:
            names = inspect_files(found, limit)
            emit_json(asdict(names)) if as_json else _show_files(names)


def _show_files(found: FilesInspection) -> None:
    emit_table(
        FILE_COLUMNS,
        ((each.file, each.kind, each.owner, each.size_bytes) for each in found.files),
    )
    _say_more(len(found.files), found.files_total, "files")


def _show_queue(found: QueueInspection) -> None:
    emit_facts(
        {
            "name": None if found.name is None else plain(found.name),
            "queue": None if found.queue is None else plain(found.queue),
            "folder": found.folder,
            "last_op": found.last_op,
            "epoch": found.epochs[-1][0] if found.epochs else 0,
            "next_position": found.next_position,
            "live": _ranges_text(found.live),
            "redelivered": _ranges_text(found.redelivered),
            "missing": _ranges_text(found.missing),
            "transient_dropped": found.transient_dropped,
            "producers": found.producers,
            "cuts": " ".join(f"{a}:{b}" for a, b in found.cuts) or "none",
            "damaged": found.damaged,
            "torn_bytes": found.torn_bytes,
        }
    )
    click.echo()
    _show_summaries(found.files)
    click.echo()
    _show_records(found.records, found.records_total)


def _show_file(found: FileInspection) -> None:
    _show_summaries([found.summary])
    if found.queues_unreadable:
        click.echo(f"references of {found.queues_unreadable} queues are not known")
    click.echo()
    _show_records(found.records, found.records_total)


def _show_summaries(files: list[FileSummary]) -> None:
    emit_table(
        SUMMARY_COLUMNS,
        (
            (
                each.file,
                each.kind,
                "?" if each.number is None else each.number,
                each.size_bytes,
                each.records,
                each.messages,
                "?" if each.messages_live is None else each.messages_live,
                "?" if each.bytes_live is None else size_text(each.body_bytes - each.bytes_live),
                each.faults,
            )
            for each in files
        ),
    )


def _show_records(records: list[ShownRecord], total: int) -> None:
    emit_table(
        RECORD_COLUMNS,
        (
            (
                each.file.rpartition("/")[2],
                each.offset,
                each.length,
                each.kind,
                each.number,
                each.epoch,
                "transient" if each.transient else "-",
                each.messages,
                "-" if each.messages_live is None else each.messages_live,
                each.body_bytes,
                each.fault or _details_text(each.details),
            )
            for each in records
        ),
    )
    _say_more(len(records), total, "records")


def _details_text(details: dict[str, object]) -> str:
    """`name value` for each detail that a record of this kind has.

    Ranges are shown as `first-last`, locations as `file/ordinal@offset`.
    """
    texts: list[str] = []
    for name, value in details.items():
        if value in ("", None) or name.endswith("_total"):
            continue
        if isinstance(value, list):
            more = "" if details[f"{name}_total"] == len(value) else " ..."
            value = (" ".join(map(_item_text, value)) or "none") + more
        texts.append(f"{name} {value}")
    return ", ".join(texts)


def _item_text(item: dict[str, int] | tuple[int, int]) -> str:
    if isinstance(item, dict):
        return f"{item['file']}/{item['ordinal']}@{item['offset']}"
    return f"{item[0]}-{item[1]}"


def _ranges_text(found: Ranges) -> str:
    shown = " ".join(f"{first}-{last}" for first, last in found.ranges)
    more = " ..." if len(found.ranges) < found.total else ""
    return f"{found.messages} in {found.total} ranges: {shown}{more}" if found.total else "none"


def _say_more(shown: int, total: int, rows: str) -> None:
    if shown < total:
        click.echo(f"({shown} of {total} {rows}: see --limit)")
