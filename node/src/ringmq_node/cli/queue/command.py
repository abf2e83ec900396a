"""`ringmq queue ...` and `ringmq promote`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict

import click

import ringmq
from ringmq import QueueInfo, QueueMode, QueueStorage
from ringmq_node.cli.options import client_options, run
from ringmq_node.cli.output import emit_facts, emit_json, emit_table, queue_json, ring_text

MODES = click.Choice(["default", "lazy"])


@click.group()
def queue() -> None:
    """Declare, look at, change, empty and delete queues."""


@queue.command()
@click.argument("name")
@click.option(
    "--replicas",
    type=click.IntRange(0),
    default=0,
    help="The master included. Default: as many as there are nodes, at most 3.",
)
@click.option(
    "--min-insync",
    type=click.IntRange(0),
    default=0,
    help="Replicas that must have a message on disk before it is confirmed. Default: a majority.",
)
@click.option(
    "--mode",
    "mode_name",
    type=MODES,
    help="default: messages in memory while there is room. lazy: on disk only.",
)
@click.option(
    "--durable/--transient",
    default=None,
    help="transient: nothing is synced, and the queue is gone once all nodes that hold it have "
    "been restarted.  [default: durable]",
)
@client_options
def declare(
    name: str,
    replicas: int,
    min_insync: int,
    mode_name: str | None,
    durable: bool | None,
    seeds: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Create the queue NAME, unless it is there with the same arguments."""

    mode = None if mode_name is None else QueueMode[mode_name.upper()]

    async def work() -> QueueInfo:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            return await client.declare_queue(
                name, replicas, min_insync, mode=mode, durable=durable
            )

    info = run(work())
    if as_json:
        emit_json(queue_json(info))
    else:
        click.echo(f"queue {info.queue}: {info.state.name.lower()}, ring {ring_text(info)}")


@queue.command("list")
@click.argument("prefix", default="")
@client_options
def list_queues(prefix: str, seeds: str, timeout: float, as_json: bool) -> None:
    """All queues, or those whose names begin with PREFIX."""

    async def work() -> list[QueueInfo]:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            return await client.queues(prefix)

    found = run(work())
    if as_json:
        emit_json([queue_json(info) for info in found])
        return
    emit_table(
        (
            "queue",
            "state",
            "mode",
            "durable",
            "ring",
            "epoch",
            "ready",
            "unacked",
            "bytes",
            "consumers",
        ),
        (
            (
                info.queue,
                info.state.name.lower(),
                info.mode.name.lower(),
                "yes" if info.durable else "no",
                ring_text(info),
                info.epoch,
                info.messages_ready,
                info.messages_unacknowledged,
                info.bytes_ready + info.bytes_unacknowledged,
                info.consumers,
            )
            for info in found
        ),
    )


@queue.command()
@click.argument("name")
@client_options
def show(name: str, seeds: str, timeout: float, as_json: bool) -> None:
    """Everything about the queue NAME."""

    async def work() -> QueueInfo:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            return await client.queue(name)

    info = run(work())
    facts = queue_json(info)
    if as_json:
        emit_json(facts | {"storage": None if info.storage is None else asdict(info.storage)})
        return
    del facts["ring"]
    if info.storage is not None:
        facts |= _storage_facts(info.storage)
    emit_facts(facts)
    emit_table(
        ("replica", "role", "synchronised", "received", "persisted"),
        (
            (
                replica.node,
                "mirror" if index else "master",
                "yes" if replica.synchronised else "no",
                replica.received,
                replica.persisted,
            )
            for index, replica in enumerate(info.ring)
        ),
    )


def _storage_facts(storage: QueueStorage) -> dict[str, object]:
    """In five lines, from the message that is fetched next to the newest."""
    target = storage.messages_target
    return {
        "messages": {
            "pending": storage.messages_pending,
            "q4": storage.messages_q4,
            "q3": storage.messages_q3,
            "delta": storage.messages_delta,
            "q2": storage.messages_q2,
            "q1": storage.messages_q1,
        },
        "in_memory": {
            "messages": storage.messages_in_memory,
            "target": "none" if target is None else round(target),
            "bytes": storage.memory_bytes,
        },
        "messages_per_s": {
            "in": storage.publish_rate,
            "out": storage.deliver_rate,
            "acknowledged": storage.acknowledge_rate,
        },
        "read": {
            "bytes": storage.body_bytes_read,
            "blocks": storage.blocks_read,
            "segments": storage.segments_loaded,
        },
        "bytes_written": {
            "bodies": storage.body_bytes_written,
            "elided": storage.body_bytes_elided,
            "journals": storage.journal_bytes_written,
            "segments": storage.segment_bytes_written,
            "message_store": storage.body_bytes_stored,
        },
    }


@queue.command()
@click.argument("name")
@click.argument("mode_name", metavar="MODE", type=MODES)
@client_options
def mode(name: str, mode_name: str, seeds: str, timeout: float, as_json: bool) -> None:
    """Switch the queue NAME to the MODE default or lazy, without an interruption."""

    async def work() -> QueueMode:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            return await client.set_queue_mode(name, QueueMode[mode_name.upper()])

    before = run(work()).name.lower()
    if as_json:
        emit_json({"queue": name, "before": before, "mode": mode_name})
    else:
        click.echo(f"queue {name}: {before} -> {mode_name}")


@queue.command()
@click.argument("name")
@click.option("--if-empty", is_flag=True, help="Refuse if there are messages.")
@click.option("--if-unused", is_flag=True, help="Refuse if there are consumers.")
@click.option(
    "--force", is_flag=True, help="Also without a master, and whatever confirmed messages it has."
)
@client_options
def delete(
    name: str,
    if_empty: bool,
    if_unused: bool,
    force: bool,
    seeds: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Delete the queue NAME and its messages."""

    async def work() -> int:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            return await client.delete_queue(
                name, if_empty=if_empty, if_unused=if_unused, force=force
            )

    messages = run(work())
    if as_json:
        emit_json({"queue": name, "messages": None if force else messages})
    elif force:
        click.echo(f"queue {name}: deleted, with whatever was in it")
    else:
        click.echo(f"queue {name}: deleted, with {messages} messages")


@queue.command()
@click.argument("name")
@client_options
def purge(name: str, seeds: str, timeout: float, as_json: bool) -> None:
    """Remove the ready messages of the queue NAME."""
    _remove(name, ringmq.Client.purge_queue, "messages removed", seeds, timeout, as_json)


@queue.command("discard-damaged")
@click.argument("name", metavar="QUEUE")
@client_options
def discard_damaged(name: str, seeds: str, timeout: float, as_json: bool) -> None:
    """Remove the messages of QUEUE whose bodies are damaged on every replica."""
    text = "damaged messages discarded"
    _remove(name, ringmq.Client.discard_damaged, text, seeds, timeout, as_json)


def _remove(
    name: str,
    how: Callable[[ringmq.Client, str], Awaitable[int]],
    text: str,
    seeds: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Says how many messages of the queue are gone."""

    async def work() -> int:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            return await how(client, name)

    messages = run(work())
    if as_json:
        emit_json({"queue": name, "messages": messages})
    else:
        click.echo(f"queue {name}: {messages} {text}")


@click.command()
@click.argument("name", metavar="QUEUE")
@click.argument("node")
@client_options
def promote(name: str, node: str, seeds: str, timeout: float, as_json: bool) -> None:
    """Make NODE's mirror the master of QUEUE: nothing is lost or enqueued twice."""

    async def work() -> ringmq.Promotion:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            return await client.promote_mirror(name, node)

    done = run(work())
    if as_json:
        emit_json(
            {
                "queue": name,
                "old_master": done.old_master,
                "new_master": done.new_master,
                "epoch": done.epoch,
                "took_ms": done.took_ms,
            }
        )
    else:
        click.echo(
            f"queue {name}: {done.old_master} -> {done.new_master}, "
            f"epoch {done.epoch}, {done.took_ms} ms"
        )
