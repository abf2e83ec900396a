"""One run: a cluster, its clients, rounds of faults until the time is over, and the verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.rounds import REPLACED_AFTER_S, Round, rounds
from faults.vocabulary import CLIENTS, SlowDisk
from history.checker import check
from history.records import History, Whole, read
from nemesis.cluster import Cluster
from nemesis.etcd_host import EtcdHost
from nemesis.network import Network

import ringmq
from chaos.disks import Disks, NoDisksError
from chaos.figures import by_kind, look_at, too_long
from chaos.hands import REGISTRY_HOST, Hands
from chaos.load import QUEUES, REPLICAS, Load
from chaos.report import Outcome

# The last one joins in the midst of a run.
SPARE = "d"
FIRST_NODES = ("a", "b", "c")
NODES = (*FIRST_NODES, SPARE)
HOSTS = (*NODES, REGISTRY_HOST, CLIENTS)
# After the last fault of a round everything has to be whole again within this time.
WHOLE_S_MAX = 60.0
WHOLE_POLL_S = 0.1
# Rounds with a slow disk in a row, where none can be frozen.
SKIPPED_MAX = 100
# Between two rounds, and before the first.
CALM_S = 1.5
END_S_MAX = 120.0
# The defaults of a node, or the figures would not be an operator's; but nobody waits for minutes,
# and a disk is to be really full, so that its node fails: the alarm would hold publishers before.
SETTINGS: dict[str, Any] = {
    "ring_timeout_s": 2.0,
    "lease_s": 6.0,
    "heartbeat_s": 1.0,
    "disk_free_limit": 0,
    "replace_after_s": REPLACED_AFTER_S,
}


@dataclass(frozen=True, slots=True)
class Options:
    seed: int
    minutes: float
    folder: Path
    # Play no more than this many rounds; 0: as many as there is time for.
    rounds_max: int = 0
    # Only these kinds; all, if it is empty.
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = tuple(QUEUES)
    # Times without service are told, and not judged: a busy machine makes them longer.
    untimed: bool = False
    # The disks of a run that went well are kept, too.
    keep_disks: bool = False


class NotWholeError(Exception):
    """A cluster that was not whole again in time; the message says what is missing."""


class Growing(Cluster):
    """A cluster of which not all nodes are there from the start."""

    async def start(self, *names: str) -> None:
        """The first nodes, if none is named."""
        await super().start(*(names or FIRST_NODES))


async def play(options: Options, say: Callable[[str], None]) -> Outcome:
    """Everything from an empty folder to the verdict. `say` gets a line for each round.

    Raises `NoNamespacesError`, `NoDisksError` or `FileNotFoundError` where it can't be played.
    """
    outcome = Outcome(options.seed, options.minutes)
    history = History(options.folder / "history.jsonl")
    with (
        Network(*HOSTS) as network,
        Disks(options.folder, NODES) as disks,
        EtcdHost(network, REGISTRY_HOST, options.folder) as etcd,
        history,
    ):
        # This process is on the clients' host from now on, with all threads that it starts.
        network.enter(CLIENTS)
        await etcd.wait_ready()
        try:
            async with Growing(
                options.folder,
                nodes=NODES,
                registry=etcd.url,
                network=network,
                data_of=disks.data,
                **SETTINGS,
            ) as cluster:
                await _play_on(cluster, network, disks, etcd, history, options, outcome, say)
        except AssertionError as error:
            # A node's log has an error that no fault explains, or a wait was in vain.
            outcome.failures.append(str(error))
    return outcome


def judge(outcome: Outcome, options: Options) -> None:
    """Adds what the history says."""
    history = options.folder / "history.jsonl"
    outcome.verdict = check(read(history))
    seen = look_at(read(history))
    outcome.kinds = by_kind(seen)
    if not options.untimed:
        outcome.failures += too_long(seen)
    drained, wanted = outcome.verdict.drained, len(options.queues)
    if drained < wanted:
        outcome.failures.append(f"only {drained} of {wanted} queues drained")


def drawn(options: Options, *, can_freeze: bool) -> Iterator[Round]:
    """The rounds of the seed. Where no disk can be frozen, those without a slow one: then a seed
    plays fewer rounds. `NoDisksError` if there is no such round."""
    skipped = 0
    for each in rounds(random.Random(options.seed), FIRST_NODES, options.kinds, SPARE):
        if can_freeze or not any(isinstance(fault, SlowDisk) for fault in each.faults):
            skipped = 0
            yield each
        elif (skipped := skipped + 1) > SKIPPED_MAX:
            raise NoDisksError(f"{each.kind}: no disk can be frozen here")


async def _play_on(
    cluster: Cluster,
    network: Network,
    disks: Disks,
    etcd: EtcdHost,
    history: History,
    options: Options,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    async with AsyncExitStack() as stack:
        load = await stack.enter_async_context(Load(cluster.addresses, history))
        hands = await stack.enter_async_context(
            Hands(cluster, network, disks, etcd, load, history, SPARE)
        )
        began = time.monotonic()
        try:
            await _wait_whole(load, after=began)
            await _play_rounds(hands, load, disks, history, options, say, began)
            outcome.failures += await load.differences(damage=hands.has_flipped)
            await load.end(END_S_MAX)
            for queue in QUEUES:
                ring = [each.node for each in load.infos[queue].ring]
                await cluster.wait_equal(queue, on=ring)
        except NotWholeError as error:
            outcome.failures.append(str(error))
        except ringmq.RingMQError as error:
            outcome.failures.append(f"the replicas could not be compared: {error!r}")
        except TimeoutError:
            outcome.failures.append(f"the queues were not empty after {END_S_MAX:g} s")
        finally:
            outcome.notes += hands.notes
            outcome.notes += [
                f"node {node} ended by itself with code {code}, {at - began:.1f} s after the start"
                for at, node, code in hands.exits
            ]
            outcome.notes += [f"{count} times: {text}" for text, count in load.errors.items()]


async def _play_rounds(
    hands: Hands,
    load: Load,
    disks: Disks,
    history: History,
    options: Options,
    say: Callable[[str], None],
    began: float,
) -> None:
    end = began + 60 * options.minutes
    for number, each in enumerate(drawn(options, can_freeze=disks.can_freeze), 1):
        await asyncio.sleep(CALM_S)
        if time.monotonic() > end or (options.rounds_max and number > options.rounds_max):
            return
        at = time.monotonic()
        await hands.play(number, each)
        ended = time.monotonic()
        try:
            await _wait_whole(load, after=ended)
        except NotWholeError as error:
            raise NotWholeError(f"round {number}, {each.kind} {each.faults}: {error}") from None
        whole = time.monotonic()
        history.note(Whole(whole, number))
        say(
            f"{at - began:6.1f} s  round {number:3}  {each.kind}: {ended - at:.1f} s, whole "
            f"{whole - ended:.1f} s later; {sum(load.confirmed.values())} confirmed, "
            f"{load.delivered} delivered"
        )


async def _wait_whole(load: Load, *, after: float) -> None:
    """Until every queue has all its replicas, and has confirmed something since."""
    before = dict(load.confirmed)
    deadline = after + WHOLE_S_MAX
    while True:
        load.failed()
        missing = [
            f"{queue}: {_missing(load.infos.get(queue), load.confirmed[queue] - before[queue])}"
            for queue in QUEUES
            if _missing(load.infos.get(queue), load.confirmed[queue] - before[queue])
        ]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise NotWholeError(f"not whole after {WHOLE_S_MAX:g} s: {'; '.join(missing)}")
        await asyncio.sleep(WHOLE_POLL_S)


def _missing(info: ringmq.QueueInfo | None, confirmed: int) -> str:
    """What a queue lacks; empty if nothing."""
    if info is None:
        return "no answer"
    synchronised = [each.node for each in info.ring if each.synchronised]
    if len(synchronised) < REPLICAS:
        return f"{info.state.name}, epoch {info.epoch}, synchronised {synchronised}"
    return "" if confirmed else f"{info.state.name}, and nothing confirmed"
