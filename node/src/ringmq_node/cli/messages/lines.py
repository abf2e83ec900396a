"""Lines of text in, as they become readable."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

_READ_BYTES = 256 * 1024


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lines without their ends, in lists of all that are readable now.

    A list isn't filled up first: the lines of a `tail -f` are published as they come.
    """
    rest: list[bytes] = []
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            break
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            rest.append(data)
            continue
        yield b"".join([*rest, head]).split(b"\n")
        rest = [tail] if tail else []
    if rest:
        yield [b"".join(rest)]


async def _readable(descriptor: int) -> None:
    """Returns when a read won't block. (A thread that blocks in a read would hold up Ctrl-C.)"""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        return  # epoll(7) refuses regular files, which are always readable.
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
