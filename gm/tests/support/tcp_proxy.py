"""A TCP proxy on loopback that can hold, cut and refuse: the network between two nodes."""

from __future__ import annotations

import asyncio


class TcpProxy:
    """Listens on `port`, forwards to 127.0.0.1:`target`, which may be set later."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._pairs: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def hold(self) -> None:
        """Nothing goes through, and nobody is told."""
        self._open.clear()

    def release(self) -> None:
        """Lets the held data go on."""
        self._open.set()

    def cut(self) -> None:
        """Resets all connections; new ones are taken."""
        for writers in self._pairs.values():
            for writer in writers:
                writer.transport.abort()

    async def refuse(self) -> None:
        """Resets all connections, and refuses new ones."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def close(self) -> None:
        self.release()
        if self._server is not None:
            self._server.close()
        for task in list(self._pairs):
            task.cancel()
        if self._pairs:
            await asyncio.wait(list(self._pairs))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs[task] = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._pairs[task].append(far_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, far_writer))
                tasks.create_task(self._pump(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            return  # Cut, refused by the target, or closed with the proxy.
        except BaseExceptionGroup as errors:
            if errors.split(OSError)[1] is not None:
                raise
        finally:
            for end in self._pairs.pop(task):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            if writer.transport.is_closing():
                break  # Cut meanwhile. uvloop raises RuntimeError if it is written to.
            writer.write(data)
            await writer.drain()
        # One end has gone: so does the other.
        raise ConnectionResetError
