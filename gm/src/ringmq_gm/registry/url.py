"""The address of a registry: `sqlite:///path/to/file` or `etcd://host:port,host:port/prefix`."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ringmq_gm.registry.base import AddressError, Registry
from ringmq_gm.registry.etcd import EtcdRegistry
from ringmq_gm.registry.sqlite import SqliteRegistry

ETCD_PORT = 2379
ETCD_PREFIX = "ringmq"
# Each key of a commit carries it: see COMMIT_BYTES_MAX.
ETCD_PREFIX_BYTES_MAX = 64

_FORMS = "sqlite:///path/to/file or etcd://host:port,host:port/prefix"
_ENDPOINT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]@]+)(:(?P<port>[0-9]{1,5}))?")


def open_registry(url: str) -> Registry:
    """The registry at `url`. Nothing is contacted yet: the first call connects.

    `sqlite:///var/lib/ringmq/registry.db` is the file with this absolute path; it is
    made if it is not there, its folder is not. `etcd://a:2379,b:2379,c/rings` are the
    members of one etcd cluster (the port is 2379 if left out), with all keys below
    `rings/`; the prefix is `ringmq` if left out, so that clusters can share an etcd.

    Raises `AddressError` (a `ValueError`) if `url` is neither.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise AddressError(f"registry URL {url!r}: {error}; expected {_FORMS}") from error
    if parts.query or parts.fragment:
        raise AddressError(f"registry URL {url!r} has a query or a fragment; expected {_FORMS}")
    path = unquote(parts.path)
    if parts.scheme == "sqlite":
        if parts.netloc or not path.strip("/") or path.endswith("/") or "\0" in path:
            raise AddressError(f"registry URL {url!r} names no file; expected {_FORMS}")
        # Four slashes, as other tools write an absolute path, mean the same as three.
        return SqliteRegistry(Path("/" + path.lstrip("/")))
    if parts.scheme == "etcd":
        endpoints = [_endpoint(text, url) for text in parts.netloc.split(",")]
        prefix = path.strip("/") or ETCD_PREFIX
        if len(prefix.encode(errors="replace")) > ETCD_PREFIX_BYTES_MAX:
            raise AddressError(
                f"registry URL {url!r}: the prefix is longer than {ETCD_PREFIX_BYTES_MAX} bytes"
            )
        return EtcdRegistry(endpoints, prefix=prefix + "/")
    raise AddressError(f"registry URL {url!r} has scheme {parts.scheme!r}; expected {_FORMS}")


def _endpoint(text: str, url: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match["port"] or ETCD_PORT) < 65536:
        raise AddressError(f"registry URL {url!r}: {text!r} is not host:port; expected {_FORMS}")
    return f"{match['host']}:{match['port'] or ETCD_PORT}"
