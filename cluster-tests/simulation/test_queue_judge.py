"""The judge of simulated queues, on histories by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from history import records as history
from ringsim.queues.judge import Judge, body_of
from ringsim.simulator.application import BrokenInvariantError
from ringsim.simulator.oracle import Oracle

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish
from ringmq_node.queue.run import Run

BLOCK = Block.of([body_of("p", 0)])
AGAIN = Run(0, BLOCK, transient=False, redelivered=True)
AS_NEW = replace(AGAIN, redelivered=False)


def judge_of_one_message() -> Judge:
    oracle: Any = SimpleNamespace(on_confirmed=None, lost=0)
    judge = Judge(cast(Oracle, oracle))
    judge.records.append(history.Publish(0.5, "q", "p", 0, 0))
    oracle.on_confirmed((1, ops.encode(Publish(0, BLOCK, False, b"p", 1))))
    return judge


def test_a_message_that_comes_again_as_if_it_were_new_is_a_mistake() -> None:
    judge = judge_of_one_message()
    judge.delivered([AGAIN], "c", 3, 1.0)
    judge.delivered([AS_NEW], "c", 3, 2.0)
    with pytest.raises(BrokenInvariantError, match="without `redelivered`"):
        judge.finish([], drained=False, now=3.0)


def test_a_stream_that_its_consumer_has_left_shows_it_nothing() -> None:
    """Seed 348766 at 4f87eda: a master was paused, its queue went on elsewhere, and it sent what
    it still had to send once it ran again."""
    judge = judge_of_one_message()
    judge.delivered([AGAIN], "c", 3, 1.0)
    judge.delivered([AS_NEW], "c", 2, 2.0)
    judge.finish([], drained=False, now=3.0)
