from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.measure import BenchError, Point, measure
from bench.peers.nats import peer as nats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(not nats.is_installed(), reason=nats.APT_COMMAND),
]


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[nats.NatsPeer]:
    servers = nats.NatsPeer(tmp_path / "nats")
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def test_messages_to_many_streams_are_acknowledged_by_their_leaders(peer: nats.NatsPeer) -> None:
    """With leaders on all three servers, an ack that went to each connection would count often."""
    measured = measure(peer, Point(count=207, size_bytes=100, window=10, queues=6), 1)
    assert measured.client.acked == 207
    assert 0 < measured.client.p50_ms <= measured.client.max_ms
    assert measured.broker_cpu_s > 0


def test_a_refusal_fails_the_run(peer: nats.NatsPeer) -> None:
    peer.prepare(["large"])
    with pytest.raises(BenchError, match="aximum Payload"):
        peer.publish(Point(count=1, size_bytes=2 * 1024 * 1024, window=1), ["large"])
