"""What a node is told: flags over environment over a TOML file over the defaults here.

Each setting is a field of `NodeConfig`; in the environment it is RINGMQ_ and the name in
capitals, in the file the name itself.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ringmq_base.limits import MIB
from ringmq_node.resources.limits import parse_disk_free_limit, parse_memory_watermark

NODE_NAME_BYTES_MAX = 128
# Of what a request may have beside its bodies (`node.REQUEST_OVERHEAD_BYTES`).
PROPERTIES_BYTES_MAX = MIB // 2
TIMES = ("ring_timeout_s", "slow_timeout_s", "disk_timeout_s", "lease_s", "heartbeat_s", "drain_s")


class ConfigError(ValueError):
    """A setting that can't be used; the message names it and says what is allowed."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The settings of one node. Times in seconds, sizes in bytes, unless the name says more."""

    node: str
    registry: str
    data: str
    # Where to serve, and under which address the others and the clients find it
    # (empty: as listened to). Port 0 takes a free one.
    listen: str = "127.0.0.1:7800"
    advertise: str = ""
    # The cluster's name; a data directory or a registry of another one is refused.
    cluster: str = "ringmq"
    message_bytes_max: int = 128 * MIB
    # A message's properties, encoded. RabbitMQ has them in one frame of, by default, this size.
    properties_bytes_max: int = 128 * 1024
    ring_timeout_s: float = 2.0
    slow_timeout_s: float = 10.0
    # A write, sync or read of the data directory that takes longer fails the node's store.
    disk_timeout_s: float = 30.0
    lease_s: float = 6.0
    heartbeat_s: float = 1.0
    # Bodies and index entries of all queues that may be in memory; what isn't on disk yet
    # is bounded by `StoreLimits.unsynced_bytes_max`.
    queue_memory_bytes_max: int = 256 * MIB
    # Batches whose messages are on average smaller, properties included, have their bodies in
    # the queue's index, the others in the message store. 0: none has.
    embed_below: int = 4096
    # Ops of one ring that aren't stable; past it publishers wait.
    ring_bytes_max: int = 64 * MIB
    # Memory above which the node is short of it; from half of it on queues page out. A
    # fraction of what the process may use, or a size: see `resources.limits`.
    memory_watermark: str = "0.4"
    # Free disk below which the node is short of it. A size, or a multiple of the memory: 0.5mem.
    disk_free_limit: str = "50MB"
    # How long a stopping node tries to hand its masters over.
    drain_s: float = 10.0
    reflection: bool = True
    log_level: str = "info"

    def __post_init__(self) -> None:
        if not self.node or len(self.node.encode()) > NODE_NAME_BYTES_MAX or "/" in self.node:
            raise ConfigError(
                f"node: {self.node!r} is not a name of 1 to {NODE_NAME_BYTES_MAX} bytes without '/'"
            )
        for name in ("registry", "data", "cluster", "listen"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: missing")
        for name in (
            "message_bytes_max",
            "properties_bytes_max",
            "queue_memory_bytes_max",
            "ring_bytes_max",
        ):
            if getattr(self, name) < 1024:
                raise ConfigError(f"{name}: {getattr(self, name)} is below 1024")
        if self.embed_below < 0:
            raise ConfigError(f"embed_below: {self.embed_below} is below 0")
        if self.message_bytes_max > 1024 * MIB:
            raise ConfigError(f"message_bytes_max: {self.message_bytes_max} is above 1 GiB")
        if self.properties_bytes_max > PROPERTIES_BYTES_MAX:
            raise ConfigError(
                f"properties_bytes_max: {self.properties_bytes_max} is above {PROPERTIES_BYTES_MAX}"
            )
        for name in TIMES:
            if not 0.05 <= getattr(self, name) <= 3600:
                raise ConfigError(f"{name}: {getattr(self, name)} is not within 0.05 to 3600 s")
        for name in ("listen", "advertise"):
            value = getattr(self, name)
            if value and not _is_address(value):
                raise ConfigError(f"{name}: {value!r} is not HOST:PORT")
        for name, parse in (
            ("memory_watermark", parse_memory_watermark),
            ("disk_free_limit", parse_disk_free_limit),
        ):
            try:
                parse(getattr(self, name))
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error


def _is_address(value: str) -> bool:
    host, colon, port = value.rpartition(":")
    return bool(host and colon) and port.isdigit() and int(port) < 65536


def load_config(
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> NodeConfig:
    """The settings from all three sources; `flags` that are None don't count."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_read_file(file))
    for field in fields(NodeConfig):
        text = environment.get(f"RINGMQ_{field.name.upper()}")
        if text is not None:
            values[field.name] = text
    values.update({name: value for name, value in flags.items() if value is not None})
    known = {field.name: str(field.type) for field in fields(NodeConfig)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such setting")
    missing = [name for name in ("node", "registry", "data") if not values.get(name)]
    if missing:
        raise ConfigError(
            f"{missing[0]}: missing (flag --{missing[0]} or RINGMQ_{missing[0].upper()})"
        )
    return NodeConfig(**{name: _convert(name, known[name], v) for name, v in values.items()})


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error


def _convert(name: str, kind: str, value: Any) -> Any:
    try:
        match kind:
            case "int" if not isinstance(value, float | bool):
                return int(value)
            case "float" if not isinstance(value, bool):
                return float(value)
            case "bool" if isinstance(value, str):
                return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
            case "bool" if isinstance(value, bool):
                return value
            case "str":
                return str(value)
            case _:
                raise ValueError(kind)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{name}: {value!r} is not a {kind}") from error
