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
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.queue.run import Run

BLOCK = Block.of([body_of("p", 0)])
AGAIN = Run(0, BLOCK, transient=False, redelivered=True)
AS_NEW = replace(AGAIN, redelivered=False)


def judge_of_one_message() -> Judge:
    oracle: Any = SimpleNamespace(on_confirmed=None, lost=0)
    judge = Judge(cast(Oracle, oracle))
    judge.note(history.Publish(0.5, "q", "p", 0, 0))
    oracle.on_confirmed((1, ops.encode(Publish(0, BLOCK, False, b"p", 1))))
    return judge


def acked(judge: Judge, epoch: int, now: float) -> None:
    judge.acked.add(0, 0)
    judge.op_confirmed((epoch, ops.encode(Remove(((0, 0),)))))
    judge.settled([(0, 0)], "c", epoch, now)


def test_a_message_that_comes_again_as_if_it_were_new_is_a_mistake() -> None:
    judge = judge_of_one_message()
    judge.delivered([AGAIN], "c", 3, 7, 1.0)
    judge.delivered([AS_NEW], "c", 3, 7, 2.0)
    with pytest.raises(BrokenInvariantError, match="without `redelivered`"):
        judge.finish([], drained=False, now=3.0)


def test_an_acked_message_that_a_newer_master_delivers_is_a_mistake() -> None:
    judge = judge_of_one_message()
    judge.delivered([AS_NEW], "c", 1, 7, 1.0)
    acked(judge, 7, 2.0)
    judge.delivered([AGAIN], "d", 1, 8, 3.0)
    with pytest.raises(BrokenInvariantError, match="acked, and delivered again"):
        judge.finish([], drained=False, now=4.0)


def test_a_master_that_stood_still_speaks_for_its_own_epoch() -> None:
    """Seeds 348766 and 554397: its queue went on elsewhere, where the message was delivered again
    and acked. It reads marks that had come before, and delivers what they confirm."""
    judge = judge_of_one_message()
    judge.delivered([AGAIN], "c", 9, 8, 1.0)
    acked(judge, 8, 2.0)
    judge.delivered([AS_NEW], "d", 1, 5, 3.0)
    judge.finish([], drained=False, now=4.0)


def test_a_master_that_stood_still_sees_the_effect_of_its_own_acks() -> None:
    judge = judge_of_one_message()
    judge.delivered([AS_NEW], "c", 1, 5, 1.0)
    acked(judge, 5, 2.0)
    judge.note(history.Publish(3.0, "q", "p", 1, 1), 8)
    judge.delivered([AGAIN], "d", 1, 5, 4.0)
    with pytest.raises(BrokenInvariantError, match="acked, and delivered again"):
        judge.finish([], drained=False, now=5.0)
