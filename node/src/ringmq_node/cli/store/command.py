"""`ringmq store ...`: a node's data directory, looked at while the node is down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click

from ringmq_node.cli.errors import EXIT_BROKEN, EXIT_FAILED
from ringmq_node.cli.options import json_option
from ringmq_node.cli.output import emit_facts, emit_json, emit_table, fail, progress_bar, size_text
from ringmq_node.storage.errors import StoreError
from ringmq_node.storage.offline import DataDirectory, NotADataDirectoryError, open_offline
from ringmq_node.storage.offline.faults import Fault, plain
from ringmq_node.storage.offline.inspection import (
    FileInspection,
    FilesInspection,
    NothingToInspectError,
    QueueInspection,
    Ranges,
    inspect_file,
    inspect_files,
    inspect_queue,
)
from ringmq_node.storage.offline.listing import FileSummary, Record
from ringmq_node.storage.offline.statistics import DirectoryStatistics, collect
from ringmq_node.storage.offline.verify import Verification, steps_of
from ringmq_node.storage.offline.verify import verify as verify_directory

R = TypeVar("R")

directory_argument = click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)


@click.group()
def store() -> None:
    """Look at the data directory of a node that is not running.

    Nothing is written. A directory that a node has open is refused.
    """


@contextmanager
def opened(directory: Path) -> Iterator[DataDirectory]:
    """The directory, locked against a node's start; failures as those of a command."""
    try:
        with open_offline(directory) as disk:
            yield DataDirectory(directory, disk)
    except (NotADataDirectoryError, NothingToInspectError) as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def with_progress(what: str, total: int, work: Callable[[Callable[[str], None]], R]) -> R:
    """`work`, with a function to call `total` times with the name of what is done."""
    with progress_bar() as progress:
        task = progress.add_task(what, total=total, note="")

        def on_progress(name: str) -> None:
            progress.update(task, advance=1, note=plain(name))

        return work(on_progress)


@store.command()
@directory_argument
@json_option
def stats(directory: Path, as_json: bool) -> None:
    """How much is where: queues, message stores, garbage.

    Journals are read, of all else only headers and tables. Exit code 1 if a queue can't be read.
    """
    with opened(directory) as found:
        statistics = with_progress(
            "reading", len(found.queues), lambda on_progress: collect(found, on_progress)
        )
    if as_json:
        emit_json(asdict(statistics))
    else:
        _show_statistics(statistics)
    unreadable = statistics.totals.queues_unreadable
    if unreadable:
        fail(f"{unreadable} of {len(statistics.queues)} queues can't be read")
        raise click.exceptions.Exit(EXIT_FAILED)


def _show_statistics(statistics: DirectoryStatistics) -> None:
    emit_facts(_whose(statistics))
    click.echo()
    emit_table(
        (
            "name",
            "queue",
            "messages",
            "embedded",
            "stored",
            "missing",
            "dropped",
            "bytes",
            "ranges",
            "producers",
            "op",
            "epoch",
            "journals",
            "segments",
            "files",
            "torn",
            "state",
        ),
        (
            (
                "-" if queue.name is None else plain(queue.name),
                plain(queue.queue) if queue.queue is not None else f"? {queue.folder}",
                queue.messages,
                queue.messages_embedded,
                queue.messages_stored,
                queue.messages_missing,
                queue.transient_dropped,
                size_text(queue.bytes),
                queue.ranges,
                queue.producers,
                queue.last_op,
                queue.epoch,
                queue.journals,
                queue.segments,
                size_text(queue.journal_bytes + queue.segment_bytes),
                queue.torn_bytes,
                _state(queue.error, queue.damaged, queue.corruptions),
            )
            for queue in statistics.queues
        ),
    )
    click.echo()
    _show_stores(statistics)
    click.echo()
    totals = statistics.totals
    emit_facts(
        {
            "queues": totals.queues,
            "messages": totals.messages,
            "bytes": size_text(totals.bytes),
            "file_bytes": size_text(totals.file_bytes),
            "garbage_bytes": size_text(totals.garbage_bytes),
            "torn_bytes": totals.torn_bytes,
        }
    )


def _show_stores(statistics: DirectoryStatistics) -> None:
    emit_table(
        ("store", "files", "bytes", "records", "live", "garbage", "fraction", "maps", "lost"),
        (
            (
                each.store,
                each.files,
                size_text(each.file_bytes),
                each.records,
                size_text(each.live_bytes),
                size_text(each.garbage_bytes),
                f"{each.garbage_fraction:.2f}",
                each.maps,
                each.references_lost,
            )
            for each in statistics.stores
        ),
    )


def _state(error: str | None, damaged: bool, corruptions: int) -> str:
    if error is not None:
        return f"unreadable: {plain(error)}"
    if damaged:
        return "damaged"
    return f"{corruptions} corruptions" if corruptions else "ok"


@store.command()
@directory_argument
@json_option
def verify(directory: Path, as_json: bool) -> None:
    """Read every byte, and look for the body of every message.

    Exit code 0 if all is sound (a torn tail is: it is what a crash leaves of a write that
    nobody was told of), 3 if not.
    """
    with opened(directory) as found:
        result = with_progress(
            "verifying", steps_of(found), lambda on_progress: verify_directory(found, on_progress)
        )
    if as_json:
        emit_json(asdict(result))
    else:
        _show_verification(result)
    if not result.sound:
        fail(f"{directory}: not sound, {result.faults_total} faults")
        raise click.exceptions.Exit(EXIT_BROKEN)


def _show_verification(result: Verification) -> None:
    emit_facts(
        {
            **_whose(result),
            "sound": result.sound,
            "queues": result.queues,
            "read": size_text(result.bytes_read),
            "messages": result.messages,
            "messages_unreadable": result.messages_unreadable,
            "messages_transient": result.messages_transient,
            "torn_bytes": result.torn_bytes,
            "faults": result.faults_total,
        }
    )
    first: dict[str, Fault] = {}
    count: dict[str, int] = {}
    for fault in result.faults:
        first.setdefault(fault.file, fault)
        count[fault.file] = count.get(fault.file, 0) + 1
    if first:
        click.echo()
        emit_table(
            ("first fault in", "offset", "length", "what", "queue", "positions", "more"),
            (
                (
                    file,
                    fault.offset,
                    fault.length,
                    plain(fault.what),
                    plain(fault.name or fault.queue or "-"),
                    "-" if fault.first is None else f"{fault.first} to {fault.last}",
                    count[file] - 1,
                )
                for file, fault in first.items()
            ),
        )
    if result.torn:
        click.echo()
        emit_table(
            ("torn tail of", "from", "bytes"),
            ((torn.file, torn.offset, torn.length) for torn in result.torn),
        )
    for note in result.notes:
        click.echo(f"note: {note}")


@store.command()
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
    """What is in the files: all of them by name, those of one queue, or one of them.

    Damage is shown in its place. Whether all is sound is for `verify` to say.
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
        ("file", "kind", "of", "bytes"),
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
        ("file", "kind", "number", "bytes", "records", "messages", "live", "garbage", "faults"),
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


def _show_records(records: list[Record], total: int) -> None:
    emit_table(
        (
            "file",
            "offset",
            "length",
            "kind",
            "number",
            "epoch",
            "flags",
            "messages",
            "live",
            "bytes",
            "says",
        ),
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
    """`name value` for what is there; ranges `first-last`, locations `file/ordinal@offset`."""
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


def _say_more(shown: int, total: int, what: str) -> None:
    if shown < total:
        click.echo(f"({shown} of {total} {what}: see --limit)")


def _whose(result: DirectoryStatistics | Verification) -> dict[str, object]:
    cluster, node = result.cluster, result.node
    return {
        "directory": plain(result.directory),
        "cluster": None if cluster is None else plain(cluster),
        "node": None if node is None else plain(node),
    }
