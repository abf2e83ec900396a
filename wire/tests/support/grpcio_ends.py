"""The other end of a connection as stock grpcio, without and with TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from certificates import client_tls, made_for_loopback, server_tls
from wireserver import HOST

MIB = 1024 * 1024
OPTIONS = [("grpc.max_receive_message_length", 16 * MIB), ("grpc.max_send_message_length", -1)]
SIZES = [0, 1, 5, 16_379, 16_384, 65_535, 65_536, MIB, 5 * MIB]
SECURITIES = ["plain", "tls"]


@dataclass(frozen=True)
class Security:
    """How both ends of a connection speak: `pair` is the server's certificate and its key, or None
    without TLS."""

    pair: tuple[Path, Path] | None

    # --- our own end ---

    @property
    def of_server(self) -> ssl.SSLContext | None:
        return server_tls(self.pair, "h2") if self.pair else None

    @property
    def of_client(self) -> ssl.SSLContext | None:
        return client_tls(self.pair) if self.pair else None

    # --- grpcio's ---

    def aio_channel(self, port: int) -> grpc.aio.Channel:
        address = f"{HOST}:{port}"
        if self.pair is None:
            return grpc.aio.insecure_channel(address, OPTIONS)
        return grpc.aio.secure_channel(address, self._channel_credentials(), OPTIONS)

    def sync_channel(self, port: int) -> grpc.Channel:
        address = f"{HOST}:{port}"
        if self.pair is None:
            return grpc.insecure_channel(address, OPTIONS)
        return grpc.secure_channel(address, self._channel_credentials(), OPTIONS)

    def add_port(self, server: Any, port: int = 0) -> int:
        """Has a server of grpcio, sync or aio, listen on loopback."""
        address = f"{HOST}:{port}"
        if self.pair is None:
            return int(server.add_insecure_port(address))
        certificate, key = (path.read_bytes() for path in self.pair)
        return int(
            server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
        )

    def _channel_credentials(self) -> grpc.ChannelCredentials:
        assert self.pair is not None
        return grpc.ssl_channel_credentials(self.pair[0].read_bytes())


def security_of(name: str, factory: pytest.TempPathFactory) -> Security:
    """Of `SECURITIES`."""
    return Security(None if name == "plain" else made_for_loopback(factory.mktemp("tls")))
