"""A node's process: one life of the node after another, until it is told to stop.

A node whose store fails for want of room or of file descriptors stays up without its rings, and
tells everybody who asks for the reason. When what it lacked is there again, it begins a new life in
this process (`shortage`). It begins none while a thread of the old life may still write, as that
write would land in files of the new one: then the disk hangs, and only another process will do.
All else that a node can't do without ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import uvloop

from ringmq_gm import SupersededError
from ringmq_node.config import NodeConfig
from ringmq_node.errors import StartError
from ringmq_node.node import Node, make_node
from ringmq_node.resources import allocator
from ringmq_node.resources.garbage import Garbage
from ringmq_node.shortage import PAUSE_S_MIN, Pauses, drop_cached, missing
from ringmq_node.storage.errors import DiskHangsError, is_shortage

logger = logging.getLogger(__name__)


Ready = Callable[[Node], None]


async def run_node(config: NodeConfig, *, ready: Ready | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Raises `StartError`."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    pauses = Pauses()
    node = await _make(config, stopping)
    if node is None:
        return
    # Where the first life has listened, also if the system has chosen the port.
    config = replace(config, listen=node.listens_at)
    while await _live(node, pauses, stopping, ready):
        again = await _make_again(config, stopping)
        if again is None:
            return
        node = again


async def _make(config: NodeConfig, stopping: asyncio.Event) -> Node | None:
    """The node; None if it was told to stop first. A registry that is away is waited for."""
    making = asyncio.ensure_future(make_node(config))
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({making, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return making.result() if making.done() else None
    finally:
        stopped.cancel()
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


async def _live(node: Node, pauses: Pauses, stopping: asyncio.Event, ready: Ready | None) -> bool:
    """One life. Returns whether another one is to follow."""
    starting = asyncio.ensure_future(node.start())
    stopped = asyncio.ensure_future(stopping.wait())
    fatal = asyncio.ensure_future(node.wait_fatal())
    better = asyncio.ensure_future(_shortage_over(node, pauses))
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            logger.info(
                "node %s serves at %s, version %s", node.me, node.address, version("ringmq")
            )
            if ready is not None:
                ready(node)
            await asyncio.wait({fatal, stopped, better}, return_when=asyncio.FIRST_COMPLETED)
        is_better = better.done() and not stopped.done()
    finally:
        for wait in (starting, stopped, better):
            wait.cancel()
        await node.stop()
        if not fatal.done():
            fatal.cancel()
    if fatal.done() and not fatal.cancelled():
        try:
            fatal.result()
        except SupersededError as error:
            raise StartError(str(error)) from error
    if better.done() and not better.cancelled():
        better.result()
    if is_better and node.store.holds_directory:
        raise StartError(str(node.store.failure))
    return is_better


async def _shortage_over(node: Node, pauses: Pauses) -> None:
    """Returns when the store has failed for want of something, and that is there again."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await node.gate.wait_failure()
    pause_s = pauses.after(loop.time() - began)
    # Asked each time: the disk may be found to hang after it was full.
    while node.gate.failure is not None and is_shortage(node.gate.failure):
        await asyncio.sleep(pause_s)
        lacking = node.store.watched.slow_call() or await _missing(node)
        if not lacking:
            logger.warning(
                "there is room and there are file descriptors: the store is opened again"
            )
            return
        logger.info("the store stays closed: %s", lacking)
        pause_s = PAUSE_S_MIN
    await loop.create_future()


async def _missing(node: Node) -> str:
    """As `missing`, of a disk that may hang."""
    limit_s = node.config.disk_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await node.store.errands.run("shortage", missing, Path(node.config.data))
    except TimeoutError:
        text = f"a look for room on the disk has not come back for {limit_s:g} s"
        hangs = DiskHangsError(f"{text}: look at the disk, then start the node again")
        return str(node.store.fail(hangs))


async def _make_again(config: NodeConfig, stopping: asyncio.Event) -> Node | None:
    """The node's next life; None if it was told to stop first."""
    while not stopping.is_set():
        try:
            await asyncio.to_thread(drop_cached, Path(config.data))
            return await _make(config, stopping)
        except (StartError, OSError) as error:
            # The registry may be away just now, or the room be gone again.
            logger.warning("the node can't begin again yet: %s", error)
        try:
            async with asyncio.timeout(PAUSE_S_MIN):
                await stopping.wait()
        except TimeoutError:
            continue
    return None


def serve(config: NodeConfig, *, ready: Ready | None = None) -> None:
    """`run_node` in a process of its own, with the settings that make messages cheap."""
    allocator.keep_buffers()
    with Garbage.of_a_node(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_node(config, ready=ready))
