"""A node's settings: their sources, the order among these, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ringmq_base.limits import MIB
from ringmq_node.config import ConfigError, NodeConfig, load_config

NEEDED = {"node": "n1", "registry": "sqlite:///r", "data": "/d"}


def load(
    flags: Mapping[str, Any] = NEEDED,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> NodeConfig:
    return load_config(flags, environment or {}, file)


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node = "file"\nlease_s = 3\nheartbeat_s = 4\ndata = "/file"\n')
    config = load(
        {"registry": "sqlite:///r", "node": "flag", "data": None},
        {"RINGMQ_NODE": "environment", "RINGMQ_LEASE_S": "7.5", "OTHER": "x"},
        file,
    )
    assert (config.node, config.lease_s, config.heartbeat_s) == ("flag", 7.5, 4.0)
    assert (config.data, config.ring_timeout_s) == ("/file", 2.0)


def test_text_becomes_a_value_of_the_setting_s_type() -> None:
    config = load(
        environment={
            "RINGMQ_MESSAGE_BYTES_MAX": str(MIB),
            "RINGMQ_REFLECTION": "False",
            "RINGMQ_DRAIN_S": "0.5",
        }
    )
    assert (config.message_bytes_max, config.reflection, config.drain_s) == (MIB, False, 0.5)


@pytest.mark.parametrize("name", ["node", "registry", "data"])
def test_setting_without_a_default_is_asked_for(name: str) -> None:
    flags = {key: value for key, value in NEEDED.items() if key != name}
    with pytest.raises(ConfigError, match=rf"^{name}: missing .*--{name} or RINGMQ_{name.upper()}"):
        load(flags)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node", "a/b"),
        ("node", "x" * 129),
        ("node", "é" * 65),
        ("cluster", ""),
        ("listen", ""),
        ("listen", "7800"),
        ("listen", "host:"),
        ("listen", "host:65536"),
        ("listen", "host:http"),
        ("listen", "host:²"),
        ("advertise", ":7800"),
        ("message_bytes_max", 1023),
        ("message_bytes_max", 1025 * MIB),
        ("message_bytes_max", 2048.5),
        ("message_bytes_max", "many"),
        ("message_bytes_max", True),
        ("message_bytes_max", [2048]),
        ("properties_bytes_max", 1023),
        ("properties_bytes_max", MIB // 2 + 1),
        ("queue_memory_bytes_max", 0),
        ("ring_bytes_max", -1),
        ("embed_below", -1),
        ("producers_max", 999),
        ("lease_s", 0.09),
        ("embed_below", "4 KiB"),
        ("embed_below", 0.5),
        ("ring_timeout_s", 0),
        ("ring_timeout_s", 3601),
        ("lease_s", "nan"),
        ("lease_s", True),
        ("heartbeat_s", "inf"),
        ("reflection", "maybe"),
        ("reflection", 1),
        ("memory_watermark", 0),
        ("memory_watermark", 40),
        ("memory_watermark", "1.5"),
        ("memory_watermark", "256 potatoes"),
        ("memory_watermark", "0.5mem"),
        ("memory_watermark", True),
        ("memory_watermark", ""),
        ("disk_free_limit", -1),
        ("disk_free_limit", "50 M"),
        ("disk_free_limit", "mem"),
        ("disk_free_limit", [1]),
    ],
)
def test_setting_out_of_range_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        load({**NEEDED, name: value})


def test_limits_are_numbers_or_text(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("memory_watermark = 0.6\ndisk_free_limit = 2000000\n")
    config = load(file=file)
    assert (config.memory_watermark, config.disk_free_limit) == ("0.6", "2000000")
    config = load(environment={"RINGMQ_MEMORY_WATERMARK": "256MiB"}, file=file)
    assert config.memory_watermark == "256MiB"
    assert load({**NEEDED, "disk_free_limit": "1.5mem"}).disk_free_limit == "1.5mem"


def test_embedding_can_be_turned_off(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("embed_below = 100\n")
    assert load().embed_below == 4096
    assert load(file=file).embed_below == 100
    assert load(environment={"RINGMQ_EMBED_BELOW": "0"}, file=file).embed_below == 0
    assert load({**NEEDED, "embed_below": 8}, {"RINGMQ_EMBED_BELOW": "0"}).embed_below == 8


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:7800", "a.b-c:1"])
def test_addresses(address: str) -> None:
    assert load({**NEEDED, "listen": address, "advertise": address}).listen == address


def test_unknown_setting_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("mesage_bytes_max = 5000\n")
    with pytest.raises(ConfigError, match=r"^mesage_bytes_max: no such setting"):
        load(file=file)


@pytest.mark.parametrize("content", [b"node = ", b"\xff\xfe"], ids=["not TOML", "not text"])
def test_file_that_can_not_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "node.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"node\.toml"):
        load(file=file)
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load(file=tmp_path / "absent.toml")
