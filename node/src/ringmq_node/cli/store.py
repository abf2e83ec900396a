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
    except NotADataDirectoryError as error:
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
                    plain(fault.queue or "-"),
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


def _whose(result: DirectoryStatistics | Verification) -> dict[str, object]:
    cluster, node = result.cluster, result.node
    return {
        "directory": plain(result.directory),
        "cluster": None if cluster is None else plain(cluster),
        "node": None if node is None else plain(node),
    }
