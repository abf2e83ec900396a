"""The comparison with another tree, with peers that answer without a cluster."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench import against
from bench.comparison import run_all
from bench.measure import BenchError, ClientReport, Point
from bench.peers.ringmq import RingPeer, check_logs
from bench.report import COLUMNS
from rich.console import Console

INFO = "2026-11-22 02:59:48,123 INFO    ringmq_node.node: serving\n"
ERROR = "2026-11-22 02:59:49,004 ERROR   ringmq_gm.incoming: link from n2: bad frame\n"


class InstantPeer:
    """Answers with a fixed rate, and writes down its name and the number of queues."""

    def __init__(self, name: str, rate_per_s: float, asked: list[tuple[str, int]]) -> None:
        self.name = name
        self._rate_per_s = rate_per_s
        self._asked = asked
        self.queues: set[str] = set()

    def describe(self) -> dict[str, str]:
        return {}

    def broker_pids(self) -> Sequence[int]:
        return ()

    def handed_bytes(self) -> int | None:
        return None

    def prepare(self, queues: Sequence[str]) -> None:
        assert not self.queues.intersection(queues)
        self.queues.update(queues)

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        assert set(queues) == self.queues
        self._asked.append((self.name, len(queues)))
        ms = 1e3 / self._rate_per_s
        return ClientReport(1.0, self._rate_per_s, point.count, 0, 0.1, ms, ms, ms, ms)

    def remove(self, queues: Sequence[str]) -> None:
        assert self.queues.issuperset(queues)
        self.queues.difference_update(queues)


def test_pairs_alternate_and_their_ratios_are_printed_one_by_one() -> None:
    asked: list[tuple[str, int]] = []
    this, other = (
        InstantPeer(name, rate, asked) for name, rate in ((against.THIS, 900), (against.OTHER, 600))
    )
    comparison = against.comparison(Path("elsewhere"))
    measurements = run_all([this, other], comparison, 3, lambda _: None)

    open_window, ten_queues = against.POINTS[2], against.POINTS[3]
    timed = asked[2 * len(against.POINTS) :]  # after the warm-up of both peers
    assert [name for name, _ in timed[:6]] == ["this", "other", "other", "this", "this", "other"]
    assert timed[-1] == ("other", ten_queues.queues)
    ratios = against.ratios(measurements, open_window, lambda each: each.client.rate_per_s)
    assert ratios == [1.5, 1.5, 1.5]
    assert not this.queues | other.queues

    # The brokers of such a peer take no CPU, so that its ratio would divide by zero.
    measurements = [each for each in measurements if each.round == 1]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(against, "COLUMNS", COLUMNS[:2])
        against.print_report(Console(file=output), measurements, against.POINTS)
        result = against.to_json("try", {}, measurements, against.POINTS)
    assert "1.50 (1.50 - 1.50)" in output.getvalue()
    assert "10 queues" in output.getvalue()
    assert json.loads(json.dumps(result))["ratios"][2]["rate_per_s"] == [1.5]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no checkout"), ExitStack() as stack:
        against.start_trees(tmp_path, tmp_path, stack, print)


def test_a_fault_in_a_nodes_log_fails_the_run_and_names_the_line(tmp_path: Path) -> None:
    clean, faulty = tmp_path / "node1.log", tmp_path / "node2.log"
    clean.write_text(INFO * 2)
    faulty.write_text(INFO + ERROR + INFO)
    check_logs("ringmq", [clean])
    with pytest.raises(BenchError, match=r"1 errors .*\nringmq/node2\.log:2: .* bad frame"):
        check_logs("ringmq", [clean, faulty])
    with pytest.raises(BenchError, match="no log"):
        check_logs("ringmq", [])


@pytest.mark.parametrize("excused", [False, True])
def test_only_the_other_trees_faults_are_excused(
    excused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node1.log").write_text(ERROR)
    monkeypatch.setattr(RingPeer, "_run", lambda *_, **__: {})
    said: list[str] = []
    peer = RingPeer(tmp_path, name="other", excuse=said.append if excused else None)
    if excused:
        peer.stop()
    else:
        with pytest.raises(BenchError, match="bad frame"):
            peer.stop()
    assert len(said) == excused
