"""One node for the commands of a test module; its log must have no error in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from node.tests.cli.json_commands import Run, run_json

from ringmq_node.cli.cluster.local import LocalCluster
from ringmq_node.cli.options import run as run_on_loop


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    local = LocalCluster.create(tmp_path_factory.mktemp("cluster"), nodes=1, base_port=0)
    local.start("node1")
    try:
        run_on_loop(local.wait_ready())
        yield local
        assert local.stop() == (["node1"], [])
    finally:
        local.stop()
    assert local.log_faults() == []


@pytest.fixture
def run(
    cluster: LocalCluster,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    monkeypatch.setenv("RINGMQ_SEEDS", cluster.seeds)
    return run_json(capsysbinary)
