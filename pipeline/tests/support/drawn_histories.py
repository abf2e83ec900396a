"""Histories of runs, drawn from a seed: sound ones, ones with one flaw, and ones without any sense.

Domains are small, so that records meet. `wild` knows nothing of how queues work: each rule is
broken there in all orders and at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from history.checker import Rule
from history.records import (
    Ack,
    Confirm,
    Deliver,
    Drained,
    Garbled,
    Nemesis,
    Publish,
    Record,
    Run,
    Unknown,
    View,
    Whole,
)

TAGS = ("p1", "p2", "ü ñ")
NODES = ("a", "b", "c")
QUEUES = ("orders", "bills")


def wild(seed: int, records: int = 40) -> list[Record]:
    draw = random.Random(seed)
    # Some are in the order of time, some aren't.
    jitter = draw.choice((0.0, 3.0))
    return [
        _any_record(draw, at + draw.uniform(0, jitter), draw.choice(QUEUES))
        for at in range(draw.randrange(1, records))
    ]


def _any_record(draw: random.Random, at: float, queue: str) -> Record:
    tag, first = draw.choice(TAGS), draw.randrange(8)
    last = first + draw.randrange(4)
    epoch = draw.randrange(3)
    nodes = tuple(draw.sample(NODES, draw.randrange(1, 4)))
    kind = draw.choices(range(10), (8, 6, 2, 10, 1, 3, 2, 1, 1, 1))[0]
    return (
        lambda: Publish(at, queue, tag, first, last),
        lambda: Confirm(at, queue, tag, first, last, epoch, draw.choice(("", *NODES))),
        lambda: Unknown(at, queue, tag, first, last, "no confirm"),
        lambda: Deliver(at, queue, draw.choice("xy"), draw.randrange(2), _any_runs(draw)),
        lambda: Garbled(at, queue, "x", first),
        lambda: Ack(at, queue, "x", ((first, last), (last + 2, last + 2))),
        lambda: View(at, queue, epoch, nodes, nodes[:1], "RUNNING"),
        lambda: Drained(at, queue),
        lambda: Nemesis(at, True, 1, "kill", ("a",), "Crash(a)"),
        lambda: Whole(at, 1),
    )[kind]()


def _any_runs(draw: random.Random) -> tuple[Run, ...]:
    return tuple(
        Run(
            draw.randrange(12),
            draw.choice(TAGS),
            draw.randrange(8),
            draw.randrange(1, 4),
            draw.random() < 0.5,
        )
        for _ in range(draw.randrange(3))
    )


def sound(seed: int, batches: int = 12) -> list[Record]:
    """A queue that loses its master now and then, and does all that it promises."""
    draw = random.Random(seed)
    found: list[Record] = []
    numbers = dict.fromkeys(TAGS, 0)
    waiting: list[Run] = []
    # By position, of all that came: what has to come again on the next stream.
    unacked: list[Run] = []
    position, epoch, stream = 0, 1, 1
    for _ in range(batches):
        at = float(len(found))
        tag, count = draw.choice(TAGS), draw.randrange(1, 9)
        first = numbers[tag]
        numbers[tag] += count
        found.append(Publish(at, "q", tag, first, first + count - 1))
        fate = draw.choices(("confirmed", "unknown", "lost"), (8, 1, 1))[0]
        if fate == "confirmed":
            master = NODES[epoch % 3]
            found.append(Confirm(at + 0.1, "q", tag, first, first + count - 1, epoch, master))
        else:
            found.append(Unknown(at + 0.1, "q", tag, first, first + count - 1, "no confirm"))
        if fate != "lost":
            waiting.append(Run(position, tag, first, count, False))
            position += count
        if draw.random() < 0.5:
            found.append(Deliver(at + 0.2, "q", "c", stream, tuple(waiting)))
            unacked += waiting
            waiting = []
        if unacked and draw.random() < 0.5:
            ranges = tuple((run.position, run.position + run.count - 1) for run in unacked)
            found.append(Ack(at + 0.3, "q", "c", ranges))
            unacked = []
        if draw.random() < 0.2:
            epoch, stream = epoch + 1, stream + 1
            found.append(View(at + 0.4, "q", epoch, NODES, NODES, "RUNNING"))
            waiting = [replace(run, redelivered=True) for run in unacked] + waiting
            unacked = []
    end = float(len(found))
    return [*found, Deliver(end, "q", "c", stream, tuple(waiting)), Drained(end + 1, "q")]


def flawed(seed: int, rule: Rule) -> list[Record]:
    """A sound history with one flaw, which breaks this rule and perhaps others."""
    found = sound(seed)
    last = _last_run(found)
    message = (last.tag, last.number)
    end = found.pop()
    at = end.at
    again = replace(last, count=1, redelivered=True)
    beyond = last.position + last.count
    flaws: dict[Rule, Callable[[], list[Record]]] = {
        Rule.LOST: lambda: [
            Publish(at, "q", "late", 0, 3),
            Confirm(at, "q", "late", 0, 3),
            Deliver(at, "q", "c", 99, (Run(beyond, "late", 0, 3, False),)),
        ],
        Rule.DUPLICATED: lambda: [_delivered(at, Run(beyond, *message, 1, True))],
        Rule.REPLACED: lambda: [
            Publish(at, "q", "late", 0, 0),
            _delivered(at, Run(last.position, "late", 0, 1, True)),
        ],
        Rule.REORDERED: lambda: [
            Publish(at, "q", "late", 0, 1),
            _delivered(at, Run(beyond, "late", 1, 1, False), Run(beyond + 1, "late", 0, 1, False)),
        ],
        Rule.STREAM_REORDERED: lambda: [
            Publish(at, "q", "late", 0, 1),
            _delivered(at, Run(beyond + 1, "late", 1, 1, False), Run(beyond, "late", 0, 1, False)),
        ],
        Rule.UNMARKED: lambda: [_delivered(at, replace(again, redelivered=False))],
        Rule.ACKED_AGAIN: lambda: [
            Ack(at, "q", "c", ((last.position, last.position),)),
            _delivered(at, again),
        ],
        Rule.INVENTED: lambda: [_delivered(at, Run(beyond, "late", 0, 2, False))],
        Rule.GARBLED: lambda: [Garbled(at, "q", "c", beyond)],
        Rule.TWO_MASTERS: lambda: [
            Confirm(at, "q", "none", 1, 0, 77, "a"),
            Confirm(at, "q", "none", 1, 0, 77, "b"),
        ],
        Rule.DEPOSED: lambda: [
            Confirm(at, "q", "none", 1, 0, 78, "a"),
            Confirm(at + 0.5, "q", "none", 1, 0, 77, "b"),
        ],
        Rule.TWO_VIEWS: lambda: [
            View(at, "q", 77, ("a", "b"), ("a",), "RUNNING"),
            View(at, "q", 77, ("a", "b"), ("b",), "RUNNING"),
        ],
    }
    return [*found, *flaws[rule](), end]


def _last_run(records: list[Record]) -> Run:
    return [run for each in records if isinstance(each, Deliver) for run in each.runs][-1]


def _delivered(at: float, *runs: Run) -> Deliver:
    return Deliver(at, "q", "d", 99, runs)
