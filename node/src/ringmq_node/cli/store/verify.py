"""`ringmq store verify`: every byte read, and every message's body found."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ringmq_node.cli.errors import EXIT_BROKEN
from ringmq_node.cli.options import json_option
from ringmq_node.cli.output import emit_facts, emit_json, emit_table, fail, size_text
from ringmq_node.cli.store.opened import directory_argument, label_facts, opened, with_progress
from ringmq_node.storage.offline.faults import Fault, plain
from ringmq_node.storage.offline.verify import Verification, steps_of
from ringmq_node.storage.offline.verify import verify as verify_directory

FAULT_COLUMNS = ("first fault in", "offset", "length", "what", "queue", "positions", "more")


@click.command()
@directory_argument
@json_option
def verify(directory: Path, as_json: bool) -> None:
    """Read every byte, and look for the body of every message.

    Exit code 0 if the directory is sound, 3 if not. A torn tail is sound: a crash cut a
    write short, and no publisher had a confirm for it.
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
            **label_facts(result),
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
            FAULT_COLUMNS,
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
