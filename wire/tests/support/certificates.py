"""A certificate for the loopback address, and contexts of TLS with it."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from judges import judged_by
from wireserver import HOST


def made_for_loopback(folder: Path) -> tuple[Path, Path]:
    """A certificate and its key, as files in the folder."""
    judged_by("openssl", package="openssl")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=IP:{HOST},DNS:localhost "
        f"-keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return certificate, key


def server_tls(pair: tuple[Path, Path], *protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    context.set_alpn_protocols(list(protocols))
    return context


def client_tls(pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pair[0]))
    context.set_alpn_protocols(["h2"])
    return context
