from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.measure import Point, measure
from bench.peers.raw_ring import NODES, RawRing

HEADER_BYTES = 12
ACKNOWLEDGEMENT_BYTES = 20


def sizes_at_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Will have the size of each file, as it is before the ring removes them."""
    sizes: list[int] = []
    remove = RawRing.remove

    def look_first(peer: RawRing, queues: Sequence[str]) -> None:
        sizes.extend(path.stat().st_size for path in folder.iterdir())
        remove(peer, queues)

    monkeypatch.setattr(RawRing, "remove", look_first)
    return sizes


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("point", "frames"),
    [
        (Point(count=401, size_bytes=1000, window=1), 401),
        (Point(count=401, size_bytes=1000, window=100), 17),
        (Point(count=90, size_bytes=1000, window=2, queues=7), 90),
        (Point(count=20, size_bytes=64 * 1024, window=16), 20),
    ],
    ids=["one at a time", "a window", "seven queues", "large bodies"],
)
def test_all_is_in_each_file_once_it_is_confirmed(
    point: Point, frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = sizes_at_the_end(tmp_path / "ring", monkeypatch)
    peer = RawRing(tmp_path / "ring")
    try:
        measured = measure(peer, point, 1)
    finally:
        peer.stop()
    assert sizes == [point.count * point.size_bytes + frames * HEADER_BYTES] * NODES
    assert measured.client.acked == point.count
    assert 0 < measured.client.p50_ms <= measured.client.max_ms
    assert not list((tmp_path / "ring").iterdir())


@pytest.mark.slow
@pytest.mark.cluster
def test_a_consumer_has_all_and_its_acknowledgements_are_in_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = sizes_at_the_end(tmp_path / "ring", monkeypatch)
    point = Point(count=5_000, size_bytes=1000, window=1000, consumed=True)
    peer = RawRing(tmp_path / "ring")
    try:
        measured = measure(peer, point, 1)
    finally:
        peer.stop()
    assert measured.client.acked == point.count
    assert measured.client.consumed_per_s is not None
    # The last message comes behind its confirm, or with it.
    assert 0 < measured.client.consumed_per_s <= 1.05 * measured.client.rate_per_s
    # Frames have a quarter of the window, but 64 KiB at most: 65 messages.
    frames = -(-point.count // 65)
    (size,) = set(sizes)
    acknowledged = size - point.count * point.size_bytes - frames * HEADER_BYTES
    assert acknowledged > 0
    assert acknowledged % ACKNOWLEDGEMENT_BYTES == 0
    assert len(sizes) == NODES
