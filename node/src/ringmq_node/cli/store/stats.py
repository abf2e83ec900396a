"""`ringmq store stats`: messages, bytes and garbage of each queue and message store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ringmq_node.cli.errors import EXIT_FAILED
from ringmq_node.cli.options import json_option
from ringmq_node.cli.output import emit_facts, emit_json, emit_table, fail, size_text
from ringmq_node.cli.store.opened import directory_argument, label_facts, opened, with_progress
from ringmq_node.storage.offline.faults import plain
from ringmq_node.storage.offline.statistics import DirectoryStatistics, collect

QUEUE_COLUMNS = (
    *("name", "queue", "messages", "embedded", "stored", "missing", "dropped", "bytes"),
    *("ranges", "producers", "op", "epoch", "journals", "segments", "files", "torn", "state"),
)
STORE_COLUMNS = (
    *("store", "files", "bytes", "records", "live"),
    *("garbage", "fraction", "maps", "lost"),
)


@click.command()
@directory_argument
@json_option
def stats(directory: Path, as_json: bool) -> None:
    """How much is where: queues, message stores, garbage.

    Reads the journals whole, and headers and tables of the other files. Exit code 1 if a
    queue can't be read.
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
    emit_facts(label_facts(statistics))
    click.echo()
    emit_table(
        QUEUE_COLUMNS,
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
        STORE_COLUMNS,
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
