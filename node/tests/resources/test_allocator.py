"""Buffers that come again are kept, within a bound, and given back when they are asked for."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from children import child_environment

from ringmq_node import running
from ringmq_node.config import NodeConfig
from ringmq_node.resources import allocator
from ringmq_node.resources.allocator import M_TOP_PAD, M_TRIM_THRESHOLD, MIB

if platform.libc_ver()[0] != "glibc":
    pytest.skip("other C libraries have their own ways", allow_module_level=True)

# The interpreter's own, between two looks.
NOISE_MIB = 4


def run_child(*arguments: str) -> list[int]:
    """Page faults, and the resident size at first, with what is kept, and after a trim."""
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("faulting_child.py")), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        # Spark's tests in this process have set some.
        env={k: v for k, v in child_environment().items() if not k.startswith("MALLOC_")},
    )
    return [int(word) for word in ended.stdout.split()]


def test_pieces_that_come_again_are_not_faulted_in_again() -> None:
    assert run_child()[0] < 1000
    # Each of 100 times 4 pieces has 128 pages.
    assert run_child("--as-it-is")[0] > 10_000


def test_what_is_kept_has_a_bound_and_is_given_back() -> None:
    _, before, kept, trimmed = run_child()
    assert kept - before <= (M_TRIM_THRESHOLD[1] + M_TOP_PAD[1]) // MIB + NOISE_MIB
    assert trimmed - before <= NOISE_MIB


def test_a_node_sets_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    async def no_node(config: NodeConfig, *, ready: running.Ready | None) -> None:
        done.append("served")

    monkeypatch.setattr(running, "run_node", no_node)
    monkeypatch.setattr(allocator, "keep_buffers", lambda: done.append("set up"))
    running.serve(NodeConfig(node="a", registry="file:none", data="data"))
    assert done == ["set up", "served"]
