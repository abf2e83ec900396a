from __future__ import annotations

import pytest

from ringmq_gm.registry.base import AddressError
from ringmq_gm.registry.etcd import EtcdRegistry
from ringmq_gm.registry.sqlite import SqliteRegistry
from ringmq_gm.registry.url import open_registry


def test_sqlite_url_is_an_absolute_path() -> None:
    registry = open_registry("sqlite:///var/lib/my%20rings/registry.db")
    assert isinstance(registry, SqliteRegistry)
    assert str(registry.path) == "/var/lib/my rings/registry.db"


@pytest.mark.parametrize(
    ("url", "endpoints", "prefix"),
    [
        ("etcd://a:1,b:2/rings", ("a:1", "b:2"), b"rings/"),
        ("etcd://a", ("a:2379",), b"ringmq/"),
        ("etcd://[::1]:5,10.0.0.1/x/y/", ("[::1]:5", "10.0.0.1:2379"), b"x/y/"),
    ],
)
def test_etcd_url_names_members_and_a_prefix(
    url: str, endpoints: tuple[str, ...], prefix: bytes
) -> None:
    registry = open_registry(url)
    assert isinstance(registry, EtcdRegistry)
    assert registry.endpoints == endpoints
    assert registry.prefix == prefix


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/var/lib/registry.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///folder/",
        "sqlite://host/file",
        "sqlite:///file?mode=ro",
        "etcd://",
        "etcd:///rings",
        "etcd://a:1,,b:2",
        "etcd://a:0",
        "etcd://a:99999",
        "etcd://a:port",
        "etcd://user@a:1",
        "etcd://[::1:5",
        "etcd://a/" + "p" * 65,
        "redis://a:6379",
    ],
)
def test_url_of_no_registry_is_refused(url: str) -> None:
    with pytest.raises(AddressError, match="registry URL"):
        open_registry(url)
