"""`ringmq set-aside list|export|publish|remove`: messages of logs that replicas had to cut.

The files are whole and never change, so these commands need no lock: they work beside the node.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click

from ringmq import Client, Properties
from ringmq.publishing.asked import MessageOptions
from ringmq.v1 import common_pb2 as common
from ringmq_node.cli.messages.properties import properties_json
from ringmq_node.cli.options import Target, client_options, json_option
from ringmq_node.cli.output import emit_json, emit_report, emit_table, time_text
from ringmq_node.model.names import shown, split_name
from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.errors import CorruptionReport, StoreError
from ringmq_node.storage.format.set_aside import DIRECTORY, file_name
from ringmq_node.storage.offline.disk import ReadOnlyDisk
from ringmq_node.storage.offline.faults import plain
from ringmq_node.storage.set_aside import SetAsideFile, describe, find, read

COLUMNS = ("name", "queue", "messages", "missing", "bytes", "positions", "confirmed", "since")
# Messages that are published and waited for together.
_BATCH_MESSAGES = 500
_BATCH_BYTES = 4 * 1024 * 1024

directory_argument = click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
name_argument = click.argument("name")


@dataclass(frozen=True, slots=True)
class _Message:
    position: int
    body: bytes
    # Empty if it has none.
    properties: common.Properties
    transient: bool

    @property
    def options(self) -> MessageOptions:
        """Those of the publish that it came by, which a request has once for all its messages."""
        ttl_ms: int | None = None
        if self.properties.HasField("expiration_ms"):
            ttl_ms = self.properties.expiration_ms
        return {
            "transient": self.transient,
            "priority": self.properties.priority,
            "ttl_ms": ttl_ms,
        }


@dataclass(frozen=True, slots=True)
class _Kept(Properties):
    """As the queue had them. A publisher sends none of those that are the broker's: where the
    message was published to, and how it died."""

    wire: common.Properties = field(default_factory=common.Properties)

    def to_wire(self) -> common.Properties:
        return self.wire


@click.group("set-aside")
def set_aside() -> None:
    """Messages of logs that a node's replicas had to cut, in its data directory DIR.

    The node may run meanwhile. `cluster status` lists them for all nodes.
    """


@contextmanager
def _reading() -> Iterator[ReadOnlyDisk]:
    disk = ReadOnlyDisk()
    try:
        yield disk
    except (StoreError, OSError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        disk.close()


def _found(disk: ReadOnlyDisk, directory: Path, name: str) -> tuple[Path, SetAsideFile]:
    file = file_name(name)
    size = disk.list(directory / DIRECTORY).get(file)
    if size is None:
        raise click.UsageError(f"{directory} has no set-aside {name!r}: see `set-aside list`")
    path = directory / DIRECTORY / file
    return path, describe(disk, path, size)


@set_aside.command("list")
@directory_argument
@json_option
def list_files(directory: Path, as_json: bool) -> None:
    """What DIR has, by name."""
    with _reading() as disk:
        found, faults = find(disk, directory, repair=False)
    if as_json:
        emit_json({"set_aside": [_json(each) for each in found], "faults": faults})
        return
    emit_table(
        COLUMNS,
        (
            (
                each.name,
                plain(shown(each.info.queue)),
                each.messages,
                each.missing,
                each.file_bytes,
                f"{each.info.first_position}-{each.info.next_position - 1}",
                "yes" if each.info.confirmed else "perhaps",
                time_text(each.info.at_s),
            )
            for each in found
        ),
    )
    for fault in faults:
        click.echo(f"can't be read: {fault}", err=True)


def _json(file: SetAsideFile) -> dict[str, Any]:
    vhost, queue = split_name(file.info.queue)
    return {
        "name": file.name,
        **asdict(file.info),
        "queue": queue,
        "vhost": vhost,
        "messages": file.messages,
        "messages_missing": file.missing,
        "body_bytes": file.body_bytes,
        "file_bytes": file.file_bytes,
    }


def _messages(
    disk: ReadOnlyDisk, path: Path, size: int, faults: list[CorruptionReport]
) -> Iterator[_Message]:
    for run in read(disk, path, size, faults.append):
        block = run.block
        # None, one for all, or one for each.
        shared = block.properties()
        each = shared if len(shared) == block.count else (shared or [b""]) * block.count
        for index, (body, properties) in enumerate(zip(block.bodies(), each, strict=True)):
            parsed = common.Properties.FromString(properties)
            yield _Message(run.first_position + index, body, parsed, run.transient)


@set_aside.command()
@directory_argument
@name_argument
@json_option
def export(directory: Path, name: str, as_json: bool) -> None:
    """Print the messages, a line for each; with --json an object with all that it had.

    Exit code 1 if some of the file can't be read; the rest is printed.
    """
    out = sys.stdout.buffer
    faults: list[CorruptionReport] = []
    with _reading() as disk:
        path, file = _found(disk, directory, name)
        _, queue = split_name(file.info.queue)
        for message in _messages(disk, path, file.file_bytes, faults):
            if not as_json:
                out.write(message.body + b"\n")
                continue
            row: dict[str, Any] = {
                "position": message.position,
                "transient": message.transient,
                **properties_json(_properties(message, queue)),
                "body_base64": base64.b64encode(message.body).decode(),
            }
            emit_json(row)
        out.flush()
    _judge(name, faults)


def _properties(message: _Message, queue: str = "") -> Properties:
    return Properties.from_wire(message.properties, queue)


def _kept(message: _Message, bytes_max: int) -> Properties:
    """For a node that takes properties of at most `bytes_max`."""
    wire = common.Properties()
    wire.CopyFrom(message.properties)
    # The node notes them again, from the options of the request.
    wire.ClearField("priority")
    wire.ClearField("expiration_ms")
    if wire.ByteSize() <= bytes_max:
        return _Kept(wire=wire)
    # With what the broker said beside them, a publisher's properties may be above the limit.
    click.echo(
        f"position {message.position}: goes without its history and the exchange that it came by: "
        f"properties of {wire.ByteSize()} bytes with them, {bytes_max} are allowed",
        err=True,
    )
    return _properties(message)


def _judge(name: str, faults: list[CorruptionReport]) -> None:
    if faults:
        raise click.ClickException(f"{name}: {len(faults)} records can't be read: {faults[0]}")


@set_aside.command("publish")
@directory_argument
@name_argument
@click.option(
    "--to", "queue", metavar="QUEUE", help="Default: the queue that they were in, of its vhost."
)
@client_options
def publish_again(directory: Path, name: str, queue: str | None, target: Target) -> None:
    """Publish the messages again, at the end of the queue, and wait for the confirms.

    They are as they were: transient or not, with their properties, priorities and histories. Their
    times to live begin anew.

    A command that failed half way may be repeated: messages that it has enqueued are not enqueued
    again, as long as the queue remembers its producer.
    """
    faults: list[CorruptionReport] = []
    with _reading() as disk:
        path, file = _found(disk, directory, name)
        vhost, own = split_name(file.info.queue)
        wanted = queue or own
        if queue is None:
            target = replace(target, vhost=vhost)
        # The same id each time, so that the queue knows how far an earlier try has come.
        producer_id = b"set-aside:" + hashlib.sha256(name.encode()).hexdigest()[:32].encode()
        messages = _messages(disk, path, file.file_bytes, faults)

        async def work(client: Client) -> dict[str, Any]:
            async with client.publisher(wanted, producer_id=producer_id) as publisher:
                before = publisher.last_sequence
                published = 0
                rest = islice(messages, before, None)
                # One after the other: none may be enqueued behind one that failed, or an earlier
                # try had another number of them than it says.
                for batch in _batches(rest):
                    await publisher.publish_batch(
                        [each.body for each in batch],
                        [_kept(each, publisher.properties_bytes_max) for each in batch],
                        **batch[0].options,
                    )
                    published += len(batch)
                return {"queue": wanted, "published": published, "enqueued_before": before}

        report = target.run(work)
    emit_report(report, as_json=target.as_json)
    _judge(name, faults)


def _batches(messages: Iterator[_Message]) -> Iterator[list[_Message]]:
    batch: list[_Message] = []
    size_bytes = 0
    for message in messages:
        is_full = len(batch) >= _BATCH_MESSAGES or size_bytes > _BATCH_BYTES
        if batch and (is_full or batch[-1].options != message.options):
            yield batch
            batch, size_bytes = [], 0
        batch.append(message)
        size_bytes += len(message.body)
    if batch:
        yield batch


@set_aside.command()
@directory_argument
@name_argument
@json_option
def remove(directory: Path, name: str, as_json: bool) -> None:
    """Remove it for good. The node notices within seconds."""
    with _reading() as reading:
        path, file = _found(reading, directory, name)
    disk = FileDisk()
    try:
        disk.remove(path)
        disk.sync(path.parent)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    finally:
        disk.close()
    if as_json:
        emit_json({"name": name, "messages": file.messages, "removed": True})
    else:
        click.echo(
            f"{name}: removed, {file.messages} messages of queue {plain(shown(file.info.queue))}"
        )
