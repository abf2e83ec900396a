"""Listening sockets: what they are bound to, and what they do when descriptors run out."""

from __future__ import annotations

import errno
import logging
import socket

import pytest
from loops import run
from waiting import until
from wireserver import HOST, ROUTES

from ringmq_wire import WireChannel, WireServer, listener


class Exhausted(socket.socket):
    """Each `accept` fails so many times, as in a process without descriptors."""

    failures = 0

    def accept(self) -> tuple[socket.socket, object]:
        if Exhausted.failures:
            Exhausted.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_server_without_descriptors_accepts_again_when_it_has_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bound(family: int, host: str, port: int) -> socket.socket:
        made = Exhausted(family, socket.SOCK_STREAM)
        made.bind((host, port))
        made.listen()
        made.setblocking(False)
        return made

    monkeypatch.setattr(listener, "_bind_one", bound)
    monkeypatch.setattr(listener, "ACCEPT_PAUSE_S", 0.01)
    monkeypatch.setattr(Exhausted, "failures", 3)

    async def scenario() -> None:
        server = WireServer(ROUTES)
        port = await server.listen(HOST, 0)
        channel = WireChannel(f"{HOST}:{port}")
        assert await channel.unary("/test.Wire/Echo", b"late", timeout_s=5) == b"late"
        await channel.close()
        await server.stop(0)

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert Exhausted.failures == 0
    (said,) = caplog.messages
    assert "connections have to wait: [Errno 24]" in said


def test_clients_wait_from_bind_to_start() -> None:
    async def scenario() -> None:
        server = WireServer(ROUTES)
        channel = WireChannel(f"{HOST}:{server.bind(f'{HOST}:0')}")
        with pytest.raises(Exception, match="no connection to"):
            await channel.unary("/test.Wire/Echo", b"", timeout_s=0.05)
        server.start()
        assert await channel.unary("/test.Wire/Echo", b"x", timeout_s=5) == b"x"
        await channel.close()
        await server.stop(0)

    run(scenario())


def test_a_port_has_one_server() -> None:
    server = WireServer()
    port = server.bind(f"{HOST}:0")
    with pytest.raises(OSError, match="in use"):
        WireServer().bind(f"{HOST}:{port}")
    with pytest.raises(OSError):  # noqa: PT011 (its text depends on the resolver)
        WireServer().bind("no-such-host.invalid:0")
    for address in ("7800", "host", "host:", "host:http"):
        with pytest.raises(ValueError, match="expected host:port"):
            WireServer().bind(address)
    run(server.stop(0))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_addresses_are_those_of_both_families() -> None:
    async def scenario() -> None:
        server = WireServer(ROUTES)
        port = await server.listen("[::]", 0)
        for host in (HOST, "[::1]"):
            channel = WireChannel(f"{host}:{port}")
            assert await channel.unary("/test.Wire/Echo", b"x", timeout_s=5) == b"x"
            await channel.close()
        await server.stop(0)

    run(scenario())


def test_a_client_that_leaves_while_it_is_accepted_leaves_nothing() -> None:
    async def scenario() -> None:
        server = WireServer(ROUTES)
        port = await server.listen(HOST, 0)
        for _ in range(20):
            socket.create_connection((HOST, port)).close()
        await until(lambda: not server.connections)
        await server.stop(0)
        await server.stop(0)

    run(scenario())
