"""The same backlog, and its recovery, in RabbitMQ: one node, a classic queue, no mirrors.

Memory. RabbitMQ has two thresholds: from `watermark * paging_ratio` on it pages bodies out,
from `watermark` on it blocks publishers until it is below again. Our budget is where
paging must have made room, and our publishers are never blocked: so `PAGING_RATIO` puts the
begin of paging at the budget, and the watermark itself at four times that, where a
publisher of RabbitMQ isn't stopped by an alarm that ours doesn't have. Whether the broker
keeps to the budget is then what the plot shows. (With the watermark itself at the budget,
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
from bench.storage.context import BUDGET_BYTES, Context, Load, evict
from bench.storage.events import Record
from bench.storage.outcome import Outcome, backlog_figures, outcome
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
    """Raises `BenchError` with the command that installs what is missing."""
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
        self.record = Record()

    def __enter__(self) -> _Broker:
        self._cluster.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()

    def client(self, mode: str, load: Load) -> float:
        """Runs the client to the end; returns when that was (CLOCK_MONOTONIC, seconds)."""
        arguments = {
            "--mode": mode,
            "--port": self._cluster.port,
            "--queue": self._queue,
            "--count": load.messages,
            "--size": load.size,
            "--window": load.window,
            "--progress": PROGRESS_MS,
        }
        flat = [str(word) for pair in arguments.items() for word in pair]
        with Watched([self._client, *flat], self._context.log) as watched:
            watched.follow(
                self.record,
                roots=self._cluster.broker_pids(),
                directory=self._directory,
                until="end",
                deadline_s=_DEADLINE_S,
                say=self._context.say,
            )
            watched.wait()
        return self.record.events[-1].at_s

    def check_mode(self, variant: str) -> None:
        """Raises `BenchError` if the queue isn't what the variant says."""
        policy = self._cluster.queue_info(self._queue, ("policy",))["policy"]
        if (policy == "lazy") != (variant == LAZY):
            raise BenchError(f"RabbitMQ: policy of {self._queue} is {policy!r}")

    def recovered_in(self, load: Load) -> float:
        """Kills the broker and starts it again; seconds until `load` is there and can be read.

        `record` is of this only, afterwards. Nothing of the old broker is in the page cache.
        """
        self.record = Record()
        self._cluster.kill_node(0)
        evict(self._directory)
        started = time.monotonic()
        self._cluster.start_node(0)
        return self.client("probe", load) - started

    def use(self) -> procs.TreeUse:
        return procs.tree_use(self._cluster.broker_pids())


def backlog(context: Context, variant: str, round_number: int, load: Load) -> Outcome:
    with _Broker(context, variant) as broker:
        broker.client("publish", load)
        broker.check_mode(variant)
        broker.client("consume", load)
        figures = backlog_figures(broker.record, load.messages)
    return outcome("backlog", variant, round_number, broker.record, figures)


def recovery(context: Context, variant: str, round_number: int, load: Load) -> Outcome:
    nothing = replace(load, messages=0)
    with _Broker(context, variant) as broker:
        broker.client("probe", nothing)
        empty_s = broker.recovered_in(nothing)
        broker.client("publish", load)
        broker.check_mode(variant)
        recover_s = broker.recovered_in(load)
        use = broker.use()
        figures = {
            "recover_s": recover_s,
            "recover_empty_s": empty_s,
            "recover_cpu_s": use.cpu_s,
            "rss_peak_mib": use.rss_peak_bytes / 2**20,
        }
    return outcome("recovery", variant, round_number, broker.record, figures)
