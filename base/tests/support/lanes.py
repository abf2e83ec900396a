"""How the tests share a machine when several workers run them at once (`pytest -n auto`).

Most of the suite's time is waiting: for a lease to lapse, for a frozen node to be given up. So
there are more workers than processors, and only one kind of tests has to be kept apart: those that
start processes and rely on their time-outs. Too many clusters at once, and a node misses a
heartbeat because it had no processor, not because the test took it away. Of the workers,
`WORKERS_MAX` of a kind run tests marked `cluster`, a module at a time, and one runs those marked
`docker`: see `scheduling`. These are *lanes*. All other tests run at low priority, so that the
nodes of a cluster get a processor whenever they ask for one. Tests marked `compute`, which keep a
processor busy for many seconds, have a run of their own (`make long`).

All the same, a machine that others share can stand still for longer than a lease. So a test in a
lane that fails because something came *too late* has one more try, which the summary counts; one
that finds a wrong answer, a lost message or an unexpected log record has none. A wait that never
ends fails twice.

Without workers (`pytest FILE`) nothing of this has an effect.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from scheduling import KindScheduling
from xdist.remote import Producer

# At once, of each kind: docs/decisions/0241. All lanes together want less than two processors.
WORKERS_MAX = {"cluster": 3, "docker": 1}
WORKERS_PER_PROCESSOR = 2
NICENESS = 10
# The errors of `waiting`, of `asyncio.timeout`, and of a container that is waited for.
TOO_LATE = ["^TooLateError", "^TimeoutError", "^ClusterError: .* not within"]

# PySpark forks to start Java, in a worker whose other tests use gRPC. Its fork handlers have been
# seen to wait for good (see `commands`); whoever loads gRPC later finds them switched off.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# An example takes as long as the machine lets it: on a busy one, hypothesis' own limit of 0.2 s
# would fail the test for its neighbours.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("busy machine")


# xdist answers this itself, with one worker per processor, unless another plugin is first.
@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = os.cpu_count() or 1
    if config.option.numprocesses == "logical":
        # `make quick`: its tests seldom wait, and each worker collects them once more.
        return processors + 1
    # One more than the lanes, at least: else no other test would begin before a lane ends.
    return max(WORKERS_PER_PROCESSOR * processors, sum(WORKERS_MAX.values()) + 1)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> KindScheduling | None:
    if config.option.dist != "loadgroup":
        return None
    return KindScheduling(config, log, WORKERS_MAX)


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ and _may_raise_its_priority():
        config.pluginmanager.register(_Priorities())


# First: a worker's xdist puts the lane into a test's id in this hook, too, and sees no later mark.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test its lane, and begins with the tests that take longest."""
    for item in items:
        if item.get_closest_marker("docker"):
            item.add_marker(pytest.mark.xdist_group("docker:"))
        elif item.get_closest_marker("cluster"):
            # A module stays with one worker, because its tests may share a cluster.
            item.add_marker(pytest.mark.xdist_group(f"cluster:{item.path.stem}"))
        if _is_in_a_lane(item):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=TOO_LATE))
    # A lane that begins late ends late, when all other workers have nothing left to do.
    items.sort(key=_turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lanes that have no effect show in nothing but tests that fail now and then."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(f"{item.nodeid} has no lane: pytest and xdist don't fit")


def _turn(item: pytest.Item) -> int:
    # Spark's tests are a lane, too: see `pipeline/tests/conftest.py`.
    turns = ("docker", "cluster", "xdist_group", "slow")
    for turn, mark in enumerate(turns):
        if item.get_closest_marker(mark):
            return turn
    return len(turns)


def _is_in_a_lane(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("docker", "cluster"))


def _may_raise_its_priority() -> bool:
    """Whether a process here can get its priority back after it has lowered it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return os.geteuid() == 0 or limit >= 20 - os.getpriority(os.PRIO_PROCESS, 0)


class _Priorities:
    def __init__(self) -> None:
        self._usual = os.getpriority(os.PRIO_PROCESS, 0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if _is_in_a_lane(item):
            return (yield)
        os.setpriority(os.PRIO_PROCESS, 0, min(19, self._usual + NICENESS))
        try:
            return (yield)
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, self._usual)
