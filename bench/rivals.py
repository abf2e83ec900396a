"""Ours beside RabbitMQ's queues, NATS' streams and two footings, all in one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import plot, report
from bench.comparison import BUILD, Comparison, Say
from bench.measure import BenchError, Peer, Point
from bench.peers.footing import Footing
from bench.peers.nats import peer as nats
from bench.peers.rabbitmq import peer as rabbitmq
from bench.peers.rabbitmq.cluster import RabbitCluster
from bench.peers.raw_ring import RawRing
from bench.peers.ringmq import RingPeer

PEERS = ("ringmq", "rabbitmq", "rabbitmq-quorum", "nats-r3", "raw-ring", "disk")
# One file, and no queues.
_WITHOUT_QUEUES = ("disk",)
_WITHOUT_CONSUMERS = ("nats-r3", "disk")
# From one message alone to a full pipe, and single messages to ten queues.
ROWS = (
    Point(count=2000, size_bytes=1024, window=1),
    Point(count=10_000, size_bytes=1024, window=10),
    Point(count=20_000, size_bytes=1024, window=100),
    Point(count=40_000, size_bytes=1024, window=1000),
    Point(count=40_000, size_bytes=1024, window=1000, consumed=True),
    Point(count=5000, size_bytes=1024, window=1, queues=10),
)
# A hundred queues are declared and looked up one by one, which takes minutes.
FULL_ROWS = (
    *ROWS,
    Point(count=10_000, size_bytes=1024, window=1, queues=100),
    Point(count=50_000, size_bytes=1024, window=10, queues=100),
    Point(count=4000, size_bytes=64 * 1024, window=100),
)


def comparison(names: Sequence[str], points: Sequence[Point]) -> Comparison:
    """Of the peers `names`, some of `PEERS`; every round takes them in the same order."""
    return Comparison(
        prefix="",
        points=points,
        start=partial(start_peers, names),
        order=lambda peers, _: peers,
        to_json=report.to_json,
        print_report=report.print_report,
        draw=plot.save_lines if len(points) > len(ROWS) - 1 else plot.save,
        takes=takes,
    )


def takes(peer: Peer, point: Point) -> bool:
    """Whether the peer answers this question."""
    if point.consumed and peer.name in _WITHOUT_CONSUMERS:
        return False
    return point.queues == 1 or peer.name not in _WITHOUT_QUEUES


def points_of(*, size_bytes: int, window: int, count: int, latency_count: int) -> list[Point]:
    """The open window, and window 1 unless `latency_count` is 0 or the window is 1 anyway."""
    points = [Point(count, size_bytes, window)]
    if latency_count and window != 1:
        points.append(Point(latency_count, size_bytes, 1))
    return points


def require_rabbitmq() -> None:
    missing = rabbitmq.missing()
    if missing:
        raise BenchError(
            f"RabbitMQ's side lacks {', '.join(missing)}. On Debian or Ubuntu, as root:\n"
            f"  {rabbitmq.APT_COMMAND}\n"
            "or leave it out: --peers ringmq,disk"
        )


def start_peers(names: Sequence[str], directory: Path, stack: ExitStack, _: Say) -> list[Peer]:
    """Starts the peers `names`; `stack` ends them. They come back in the order of `PEERS`."""
    peers: list[Peer] = []
    if "ringmq" in names:
        ours = RingPeer(directory / "ringmq")
        stack.callback(ours.stop)
        ours.start()
        peers.append(ours)
    if "rabbitmq" in names or "rabbitmq-quorum" in names:
        require_rabbitmq()
        client = rabbitmq.build_client(BUILD)
        cluster = RabbitCluster(directory / "rabbitmq")
        stack.callback(cluster.stop)
        cluster.start()
        if "rabbitmq" in names:
            peers.append(rabbitmq.RabbitPeer(cluster, client, "classic"))
        if "rabbitmq-quorum" in names:
            peers.append(rabbitmq.RabbitPeer(cluster, client, "quorum"))
    if "nats-r3" in names:
        if not nats.is_installed():
            raise BenchError(f"there is no {nats.PROGRAM}; as root: {nats.APT_COMMAND}")
        servers = nats.NatsPeer(directory / "nats")
        stack.callback(servers.stop)
        servers.start()
        peers.append(servers)
    if "raw-ring" in names:
        raw = RawRing(directory / "raw-ring")
        stack.callback(raw.stop)
        peers.append(raw)
    if "disk" in names:
        peers.append(Footing(directory))
    return peers
