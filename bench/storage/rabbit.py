"""The same backlog, and its recovery, in RabbitMQ: one node, a classic queue, no mirrors.

Memory. RabbitMQ has two thresholds: from `watermark * paging_ratio` on it pages bodies out,
from `watermark` on it blocks publishers until it is below again. Our budget is where
paging must have made room, and our publishers are never blocked: so `PAGING_RATIO` puts the
begin of paging at the budget, and the watermark itself at four times that, where a
publisher of RabbitMQ isn't stopped by an alarm that ours doesn't have. Whether the broker
keeps to the budget can then be read off the plot. (With the watermark itself at the budget,
an idle broker with its 100 MiB and more would block publishers most of the time.)

Everything else is RabbitMQ's default: bodies below 4096 bytes embedded in the queue's
index, as ours are. The lazy mode comes from a policy, as its documentation advises.
"""

from __future__ import annotations

import time
from dataclasses import replace

from bench import procs
from bench.measure import BenchError
from bench.peers.rabbitmq import peer
from bench.peers.rabbitmq.cluster import Policy, RabbitCluster
from bench.storage.context import BUDGET_BYTES, Backlog, Context
from bench.storage.figures import backlog_figures
from bench.storage.observations import Observations
from bench.storage.page_cache import evict
from bench.storage.round_result import RoundResult, round_result
from bench.storage.watch import Watched

DEFAULT, LAZY = "rabbitmq", "rabbitmq-lazy"
PAGING_RATIO = 0.25
PROGRESS_MS = 250
_DEADLINE_S = 3600.0
_LAZY_POLICY: Policy = {
    "vhost": "/",
    "name": "lazy",
    "pattern": "^rabbitmq-lazy[.]",
    "apply-to": "queues",
    "priority": 0,
    "definition": {"queue-mode": "lazy"},
}


def require_installed() -> None:
    """Raises `BenchError`, with the command that installs the missing parts."""
    missing = peer.missing()
    if missing:
        raise BenchError(
            f"RabbitMQ's side lacks {', '.join(missing)}. On Debian or Ubuntu, as root:\n"
            f"  {peer.APT_COMMAND}\n"
            "or leave it out: --without-rabbitmq"
        )


class _Broker:
    """One node with the queue of one variant, and the client for it."""

    def __init__(self, context: Context, variant: str) -> None:
        self._context = context
        self._queue = f"{variant}.backlog"
        self._directory = context.directory / "rabbitmq"
        self._client = peer.build_client(context.build)
        self._cluster = RabbitCluster(
            self._directory,
            nodes=1,
            policies=(_LAZY_POLICY,),
            settings=(
                f"vm_memory_high_watermark.absolute = {int(BUDGET_BYTES / PAGING_RATIO)}",
                f"vm_memory_high_watermark_paging_ratio = {PAGING_RATIO}",
            ),
        )
        self.observed = Observations()

    def __enter__(self) -> _Broker:
        self._cluster.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()

    def client(self, mode: str, wanted: Backlog) -> float:
        """Runs the client; returns the time of its end event (CLOCK_MONOTONIC, seconds)."""
        arguments = {
            "--mode": mode,
            "--port": self._cluster.port,
            "--queue": self._queue,
            "--count": wanted.messages,
            "--size": wanted.size,
            "--window": wanted.window,
            "--progress": PROGRESS_MS,
        }
        flat = [str(word) for pair in arguments.items() for word in pair]
        with Watched([self._client, *flat], self._context.log) as watched:
            watched.follow(
                self.observed,
                roots=self._cluster.broker_pids(),
                directory=self._directory,
                until="end",
                deadline_s=_DEADLINE_S,
                say=self._context.say,
            )
            watched.wait()
        return self.observed.events[-1].at_s

    def check_mode(self, variant: str) -> None:
        """Raises `BenchError` if the queue is lazy and the variant isn't, or the reverse."""
        (info,) = self._cluster.queue_infos([self._queue], ("policy",))
        policy = info["policy"]
        if (policy == "lazy") != (variant == LAZY):
            raise BenchError(f"RabbitMQ: policy of {self._queue} is {policy!r}")

    def recovered_in(self, wanted: Backlog) -> float:
        """Kills the broker and starts it again; seconds until `wanted` is there and can be read.

        Replaces `observed`: it holds only the recovery afterwards. The page cache is emptied of
        the broker's files before the start.
        """
        self.observed = Observations()
        self._cluster.kill_node(0)
        evict(self._directory)
        started = time.monotonic()
        self._cluster.start_node(0)
        return self.client("probe", wanted) - started

    def use(self) -> procs.TreeUse:
        return procs.tree_use(self._cluster.broker_pids())


def backlog(context: Context, variant: str, round_number: int, wanted: Backlog) -> RoundResult:
    with _Broker(context, variant) as broker:
        broker.client("publish", wanted)
        broker.check_mode(variant)
        broker.client("consume", wanted)
        figures = backlog_figures(broker.observed, wanted.messages)
    return round_result("backlog", variant, round_number, broker.observed, figures)


def recovery(context: Context, variant: str, round_number: int, wanted: Backlog) -> RoundResult:
    nothing = replace(wanted, messages=0)
    with _Broker(context, variant) as broker:
        broker.client("probe", nothing)
        empty_s = broker.recovered_in(nothing)
        broker.client("publish", wanted)
        broker.check_mode(variant)
        recover_s = broker.recovered_in(wanted)
        use = broker.use()
        figures = {
            "recover_s": recover_s,
            "recover_empty_s": empty_s,
            "recover_cpu_s": use.cpu_s,
            "rss_peak_mib": use.rss_peak_bytes / 2**20,
        }
    return round_result("recovery", variant, round_number, broker.observed, figures)
