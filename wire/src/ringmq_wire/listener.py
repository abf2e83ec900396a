"""A listening port: bound at once, served later, and never lost for want of descriptors.

asyncio's own servers give up a listening socket, or report each refused connection as an error,
when the process has no descriptor left. Here accepting pauses, and clients wait in the backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_S = 0.1
TLS_HANDSHAKE_TIMEOUT_S = 10.0
# There is no descriptor, or no memory, for another connection.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """One bound socket."""

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket = bound
        self._protocol = protocol
        self._tls = tls
        self._handshake_s = TLS_HANDSHAKE_TIMEOUT_S if tls is not None else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._beginning: set[asyncio.Task[object]] = set()
        # Accepting pauses; said once for each time.
        self._is_exhausted = False

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accepts nobody any more; those that are accepted stay. May be called again."""
        if self._loop is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        self._socket.close()

    async def drop_handshakes(self) -> None:
        """Gives up the connections that aren't made yet."""
        for task in self._beginning:
            task.cancel()
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _accept(self) -> None:
        assert self._loop is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                return
            self._is_exhausted = False
            accepted.setblocking(False)
            making = self._loop.connect_accepted_socket(
                self._protocol, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
            task = self._loop.create_task(making, name="accepted connection")
            self._beginning.add(task)
            task.add_done_callback(partial(self._begun, accepted))

    def _begun(self, accepted: socket.socket, task: asyncio.Task[object]) -> None:
        """Its transport owns the socket now, if there is one."""
        self._beginning.discard(task)
        if task.cancelled():
            accepted.close()
            return
        error = task.exception()
        if error is None:
            return
        accepted.close()
        if not isinstance(error, OSError | TimeoutError):
            raise error
        # The peer has gone, or speaks no TLS that is taken here.
        log.debug("no connection: %s", error)

    def _pause(self, error: OSError) -> None:
        assert self._loop is not None
        if not self._is_exhausted:
            self._is_exhausted = True
            log.warning("port %d: connections have to wait: %s", self.port, error)
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(ACCEPT_PAUSE_S, self.start)


def bind(address: str) -> list[socket.socket]:
    """Sockets that listen at `host:port`, for each address of the host; an IPv6 host stands in
    brackets. With port 0 the system chooses one, the same for all.

    Raises OSError if the address can't be had, ValueError if it is none.
    """
    host, colon, text = address.rpartition(":")
    if not colon or not text.isdigit():
        raise ValueError(f"{address!r} is no address: expected host:port")
    host, port = host.strip("[]"), int(text)
    infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, _, _, _, name in dict.fromkeys(infos):
            try:
                bound.append(_bind_one(family, str(name[0]), port))
            except OSError as error:
                # A host may have an address of a family that this machine doesn't speak.
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                lacking = error
                continue
            port = int(bound[0].getsockname()[1])
    except BaseException:
        for one in bound:
            one.close()
        raise
    if not bound:
        raise lacking or OSError(errno.EADDRNOTAVAIL, f"{host!r} has no address")
    return bound


def _bind_one(family: int, host: str, port: int) -> socket.socket:
    # `::` is for all clients, those of IPv4 as well.
    dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    made = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    made.setblocking(False)
    return made
