from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.measure import Point, measure
from bench.peers.bare_ring import NODES, BareRing


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("window", [1, 400])
def test_all_is_in_each_file_once_it_is_confirmed(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    remove = BareRing.remove

    def look_first(peer: BareRing, queues: Sequence[str]) -> None:
        (queue,) = queues
        sizes.extend(path.stat().st_size for path in (tmp_path / "ring").glob(f"{queue}.*"))
        remove(peer, queues)

    monkeypatch.setattr(BareRing, "remove", look_first)
    peer = BareRing(tmp_path / "ring")
    try:
        measured = measure(peer, Point(count=401, size_bytes=1000, window=window), 1)
    finally:
        peer.stop()
    frames = 401 if window == 1 else 5
    assert sizes == [401 * 1000 + frames * 8] * NODES
    assert measured.client.acked == 401
    assert 0 < measured.client.p50_ms <= measured.client.max_ms
    assert not list((tmp_path / "ring").iterdir())
