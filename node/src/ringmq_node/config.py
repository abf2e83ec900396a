"""The settings of a node: flags over environment over a TOML file over the defaults here.

Each setting is a field of `NodeConfig`. In the file it has the field's name, in the environment
RINGMQ_ and the name in capitals.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from ringmq_base.limits import GIB, KIB, MIB
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.resources.credit import BYTES, MESSAGES, MORE_AFTER, Credit
from ringmq_node.resources.limits import parse_disk_free_limit, parse_memory_watermark

NODE_NAME_BYTES_MAX = 128
# Around the bodies of a request: tags, sizes, properties. These may take half of it.
REQUEST_OVERHEAD_BYTES = MIB
PROPERTIES_BYTES_MAX = REQUEST_OVERHEAD_BYTES // 2
MESSAGE_BYTES_MAX = 1024 * MIB
SIZE_BYTES_MIN = 1024
SECRET_CHARACTERS_MIN = 16
PRODUCERS_MIN = 1000
TIME_S_MIN = 0.05
# No registry grants a shorter one.
LEASE_S_MIN = 0.1
TIME_S_MAX = 3600
KEPT_S_MAX = 366 * 24 * 3600
PRODUCER_EXPIRY_S_MIN = 60
SIZES = (
    "message_bytes_max",
    "properties_bytes_max",
    "queue_memory_bytes_max",
    "ring_bytes_max",
    "publish_bytes_max",
    "unsynced_bytes_max",
    "buffer_bytes_max",
)
NOT_NEGATIVE = ("embed_below", "sync_in_place_bytes_max", "scrub_rate_bytes", "set_aside_bytes_max")
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
TIMES = (
    *(
        "ring_timeout_s",
        "slow_timeout_s",
        "disk_timeout_s",
        "lease_s",
        "heartbeat_s",
        "drain_s",
        "scrub_pause_s",
    ),
    "replace_after_s",
    "orphan_s",
)


class ConfigError(ValueError):
    """A setting that can't be used. The message names the setting and its allowed values."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The settings of one node. Times are in seconds and sizes in bytes."""

    node: str
    registry: str
    data: str
    # The address to serve on (port 0: any free one), and the address under which other nodes
    # and clients find this one (empty: the one that it serves on).
    listen: str = "127.0.0.1:7800"
    advertise: str = ""
    # The cluster's name. A data directory or a registry of another cluster is refused.
    cluster: str = "ringmq"
    # What nodes of the cluster have in common and nobody else knows. Empty: the first node makes
    # one, and the registry keeps it.
    cluster_secret: str = field(default="", repr=False)
    message_bytes_max: int = 128 * MIB
    # A message's properties, encoded. In RabbitMQ they have to fit into one frame, which by
    # default is of this size.
    properties_bytes_max: int = 128 * 1024
    ring_timeout_s: float = 2.0
    slow_timeout_s: float = 10.0
    # If one write, sync or read of the data directory takes longer, the node's store fails.
    disk_timeout_s: float = 30.0
    # Writes up to this size are synced on the event loop's own thread while the disk is quick. One
    # that hangs then stops the node, and the ring puts it out; 0: threads sync everything.
    sync_in_place_bytes_max: int = 16 * KIB
    lease_s: float = 6.0
    heartbeat_s: float = 1.0
    # Bodies and index entries of all queues that may be in memory. Bytes that aren't on disk
    # yet have a bound of their own, `unsynced_bytes_max`.
    queue_memory_bytes_max: int = 256 * MIB
    # A batch whose messages are smaller than this on average, properties included, has its
    # bodies in the queue's index; another one in the message store. 0: all in the store.
    embed_below: int = 4096
    # The background scrub reads everything that is on disk, at most so many bytes per second (0: no
    # scrub), and rests after each pass.
    scrub_rate_bytes: int = MIB
    scrub_pause_s: float = 3600.0
    # Ops of one ring that aren't stable yet. When they are more, publishers wait.
    ring_bytes_max: int = 64 * MIB
    # Publishes under way on this node, over all queues: see `resources.budget`.
    publish_bytes_max: int = 256 * MIB
    # Bytes that wait for this node's disk, over all queues. Above it neither publishers here nor
    # the masters of rings with a mirror here bring more.
    unsynced_bytes_max: int = 64 * MIB
    # Bytes that the node holds for its clients, each kind by itself: see `resources.buffers`.
    buffer_bytes_max: int = 256 * MIB
    # Of a publish stream at its queue, for batches that are held: see `resources.credit`.
    credit_messages: int = MESSAGES
    credit_more_after: int = MORE_AFTER
    credit_bytes: int = BYTES
    # At this much memory in use the alarm is on; from half of it on queues page out. A
    # fraction of the memory that the process may use, or a size: see `resources.limits`.
    memory_watermark: str = "0.4"
    # Below this much free disk the alarm is on. A size, or a multiple of the memory that
    # the process may use: 0.5mem.
    disk_free_limit: str = "50MB"
    # Producers that all queues of this node remember together, to recognise repeats.
    producers_max: int = 100_000
    # A producer that hasn't published for so long is forgotten; 0: none is for its age.
    producer_expiry_s: float = 7 * 24 * 3600
    # For so long a stopping node tries to hand its masters over.
    drain_s: float = 10.0
    # A replica on a node that has been down for so long is replaced by one on another node.
    replace_after_s: float = 300.0
    # For so long a replica that no queue's record names any more stays on the disk.
    leftover_s: float = 24 * 3600
    # How long a queue outlives the connection or the consumers that it lives by, if these were lost
    # without a word: they, or their nodes, may merely be out of reach.
    orphan_s: float = 10.0
    # Ends of logs that replicas had to cut may be the last copies of their messages: how long they
    # are kept for operators, and how many bytes of them; 0: none are kept.
    set_aside_s: float = 7 * 24 * 3600
    set_aside_bytes_max: int = GIB
    reflection: bool = True
    log_level: str = "info"

    @property
    def broker_settings(self) -> BrokerSettings:
        return BrokerSettings(
            message_bytes_max=self.message_bytes_max,
            properties_bytes_max=self.properties_bytes_max,
            heartbeat_s=self.heartbeat_s,
        )

    def __post_init__(self) -> None:
        if not self.node or len(self.node.encode()) > NODE_NAME_BYTES_MAX or "/" in self.node:
            raise ConfigError(
                f"node: {self.node!r} is not a name of 1 to {NODE_NAME_BYTES_MAX} bytes without '/'"
            )
        for name in ("registry", "data", "cluster", "listen"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: missing")
        if self.cluster_secret and len(self.cluster_secret) < SECRET_CHARACTERS_MIN:
            raise ConfigError(f"cluster_secret: shorter than {SECRET_CHARACTERS_MIN} characters")
        for name in SIZES:
            if getattr(self, name) < SIZE_BYTES_MIN:
                raise ConfigError(f"{name}: {getattr(self, name)} is below {SIZE_BYTES_MIN}")
        if self.producers_max < PRODUCERS_MIN:
            raise ConfigError(f"producers_max: {self.producers_max} is below {PRODUCERS_MIN}")
        try:
            Credit(self.credit_messages, self.credit_more_after, self.credit_bytes)
        except ValueError as error:
            raise ConfigError(f"credit_messages: {error}") from error
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is below 0")
        for name in ("leftover_s", "set_aside_s", "producer_expiry_s"):
            if not 0 <= getattr(self, name) <= KEPT_S_MAX:
                raise ConfigError(
                    f"{name}: {getattr(self, name)} is not within 0 to {KEPT_S_MAX} s"
                )
        if 0 < self.producer_expiry_s < PRODUCER_EXPIRY_S_MIN:
            raise ConfigError(
                f"producer_expiry_s: {self.producer_expiry_s} is below {PRODUCER_EXPIRY_S_MIN} s"
            )
        if self.message_bytes_max > MESSAGE_BYTES_MAX:
            raise ConfigError(f"message_bytes_max: {self.message_bytes_max} is above 1 GiB")
        if self.properties_bytes_max > PROPERTIES_BYTES_MAX:
            raise ConfigError(
                f"properties_bytes_max: {self.properties_bytes_max} is above {PROPERTIES_BYTES_MAX}"
            )
        for name in TIMES:
            least = LEASE_S_MIN if name == "lease_s" else TIME_S_MIN
            if not least <= getattr(self, name) <= TIME_S_MAX:
                raise ConfigError(
                    f"{name}: {getattr(self, name)} is not within {least} to {TIME_S_MAX} s"
                )
        self._check_addresses()
        for name, parse in (
            ("memory_watermark", parse_memory_watermark),
            ("disk_free_limit", parse_disk_free_limit),
        ):
            try:
                parse(getattr(self, name))
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error

    def _check_addresses(self) -> None:
        for name in ("listen", "advertise"):
            value = getattr(self, name)
            if value and not _is_address(value):
                raise ConfigError(f"{name}: {value!r} is not HOST:PORT")


def _is_address(value: str) -> bool:
    host, colon, port = value.rpartition(":")
    # `isdigit` alone is true of digits that `int` doesn't take: "²".
    is_number = port.isascii() and port.isdigit()
    return bool(host and colon) and is_number and int(port) < 65536


def load_config(
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> NodeConfig:
    """The settings from all three sources; a flag that is None was not given.

    Raises `ConfigError`."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_read_file(file))
    for setting in fields(NodeConfig):
        text = environment.get(f"RINGMQ_{setting.name.upper()}")
        if text is not None:
            values[setting.name] = text
    values.update({name: value for name, value in flags.items() if value is not None})
    known = get_type_hints(NodeConfig)
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


def _convert(name: str, kind: type[Any], value: Any) -> Any:
    """`value`, which may be text or of TOML's types, as a `kind`."""
    try:
        if kind is str:
            return str(value)
        if kind is bool and isinstance(value, str):
            return BOOLEANS[value.lower()]
        # In Python a bool is an int, and int() cuts a float off: neither was meant.
        if isinstance(value, bool) != (kind is bool) or (kind is int and isinstance(value, float)):
            raise ValueError(value)
        return kind(value)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{name}: {value!r} is not a {kind.__name__}") from error
