"""TLS by ALPN: ours with ours, and with stock grpcio both ways."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from certificates import client_tls, made_for_loopback, server_tls
from loops import run
from wireserver import HOST, ROUTES

from ringmq_wire import Code, RpcError, WireChannel, WireServer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made_for_loopback(tmp_path_factory.mktemp("tls"))


def test_our_client_and_our_server(pair: tuple[Path, Path]) -> None:
    async def scenario() -> None:
        server = WireServer(ROUTES, tls=server_tls(pair, "h2"))
        port = await server.listen(HOST, 0)
        channel = WireChannel(f"{HOST}:{port}", tls=client_tls(pair))
        for size in (0, 100_000, 3_000_000):
            assert await channel.unary("/test.Wire/Echo", bytes(size)) == bytes(size)
        await channel.close()
        await server.stop(0)

    run(scenario())


def test_a_server_that_chooses_no_http2_is_refused(pair: tuple[Path, Path]) -> None:
    async def scenario() -> None:
        server = WireServer(ROUTES, tls=server_tls(pair, "http/1.1"))
        port = await server.listen(HOST, 0)
        channel = WireChannel(f"{HOST}:{port}", tls=client_tls(pair))
        with pytest.raises(RpcError) as caught:
            await channel.unary("/test.Wire/Echo", b"")
        assert caught.value.status.code is Code.UNAVAILABLE
        assert "ALPN" in caught.value.status.message
        await channel.close()
        await server.stop(0)

    run(scenario())


def test_a_certificate_of_a_stranger_is_refused(pair: tuple[Path, Path]) -> None:
    async def scenario() -> None:
        server = WireServer(ROUTES, tls=server_tls(pair, "h2"))
        port = await server.listen(HOST, 0)
        context = ssl.create_default_context()
        context.set_alpn_protocols(["h2"])
        channel = WireChannel(f"{HOST}:{port}", tls=context)
        with pytest.raises(RpcError, match="CERTIFICATE_VERIFY_FAILED"):
            await channel.unary("/test.Wire/Echo", b"")
        await channel.close()
        await server.stop(0)

    run(scenario())


def test_a_stock_client(pair: tuple[Path, Path]) -> None:
    async def scenario() -> None:
        server = WireServer(ROUTES, tls=server_tls(pair, "h2"))
        port = await server.listen(HOST, 0)
        credentials = grpc.ssl_channel_credentials(pair[0].read_bytes())
        async with grpc.aio.secure_channel(f"{HOST}:{port}", credentials) as channel:
            for size in (0, 100_000, 3_000_000):
                call: Any = channel.unary_unary("/test.Wire/Echo")
                assert await call(bytes(size), timeout=20) == bytes(size)
        await server.stop(0)

    run(scenario())


def test_a_stock_server(pair: tuple[Path, Path]) -> None:
    async def echo(request: bytes, _: object) -> bytes:
        return request

    async def scenario() -> None:
        certificate, key = (path.read_bytes() for path in pair)
        server = grpc.aio.server()
        handler: dict[str, Any] = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Wire", handler),)
        )
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port(f"{HOST}:0", credentials)
        await server.start()
        channel = WireChannel(f"{HOST}:{port}", tls=client_tls(pair))
        for size in (0, 100_000, 3_000_000):
            async with asyncio.timeout(20):
                assert await channel.unary("/test.Wire/Echo", bytes(size)) == bytes(size)
        await channel.close()
        await server.stop(0)

    run(scenario())
