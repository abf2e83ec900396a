"""Where two logs part: `keep_below` against logs whose every message is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove, Requeue
from ringmq_node.queue.state import EPOCHS_MAX, EpochStart, ReplicatedState
from ringmq_node.replica.catchup import keep_below


@dataclass
class Log:
    """A replica's log: its state, and the message at each position."""

    state: ReplicatedState = field(default_factory=ReplicatedState)
    # (epoch, number of the op, position)
    messages: list[tuple[int, int, int]] = field(default_factory=list)

    def copy(self) -> Log:
        return Log(self.state.copy(), [*self.messages])

    def op(self, epoch: int, published: int) -> None:
        """One op of `epoch`, which publishes so many messages (0: it publishes none)."""
        if epoch > self.state.epoch:
            self.state.begin_epoch(epoch)
        number = self.state.last_number + 1
        first = self.state.next_position
        if published:
            self.state.apply(number, Publish(first, Block.of([b"x"] * published)))
        else:
            self.state.apply(number, Remove(((0, 0),)))
        self.messages += [(epoch, number, first + at) for at in range(published)]


def kept(mine: Log, theirs: Log) -> int:
    return keep_below(
        mine.state.epochs,
        mine.state.next_position,
        theirs.state.epochs,
        theirs.state.next_position,
    )


def common_messages(mine: Log, theirs: Log) -> int:
    count = 0
    for one, other in zip(mine.messages, theirs.messages, strict=False):
        if one != other:
            break
        count += 1
    return count


# Ops of one epoch: how many messages each publishes.
OPS = st.lists(st.integers(0, 3), max_size=4)


@given(
    common=st.lists(OPS, max_size=4),
    mine=st.lists(OPS, max_size=3),
    theirs=st.lists(OPS, max_size=3),
    goes_on=OPS,
    goes_on_mine=st.booleans(),
)
def test_exactly_the_common_prefix_is_kept(
    common: list[list[int]],
    mine: list[list[int]],
    theirs: list[list[int]],
    goes_on: list[int],
    goes_on_mine: bool,
) -> None:
    """Both logs have the same ops for a while. Then each has epochs of its own, and one of them
    may have more of the last common epoch: its master's last ops, which nobody else has."""
    one = Log()
    epoch = 0
    for batch in common:
        epoch += 1
        for published in batch:
            one.op(epoch, published)
    other = one.copy()
    for published in goes_on:
        (one if goes_on_mine else other).op(max(epoch, 1), published)
    # An epoch has one master: no two logs begin the same one differently.
    for log, batches, step in ((one, mine, 0), (other, theirs, 1)):
        for index, batch in enumerate(batches):
            for published in batch:
                log.op(epoch + 2 + 2 * index + step, published)
    below = kept(one, other)
    assert below == common_messages(one, other)
    assert below == kept(other, one)


@given(
    seed=st.randoms(use_true_random=False),
    steps=st.integers(1, 60),
)
def test_exactly_the_common_prefix_of_any_two_replicas_is_kept(
    seed: random.Random, steps: int
) -> None:
    """Masters come and go as the ring has it: each begins with its own log, a new epoch is
    its own, and others get a prefix of what it has, after which they are as it is."""
    logs = [Log(), Log(), Log()]
    master, epoch = 0, 1
    for _ in range(steps):
        choice = seed.random()
        if choice < 0.55:
            logs[master].op(epoch, seed.choice([0, 1, 3]))
        elif choice < 0.85:
            logs[seed.randrange(3)] = logs[master].copy()
        else:
            master, epoch = seed.randrange(3), epoch + 1
        for one in logs:
            for other in logs:
                assert kept(one, other) == common_messages(one, other)


def test_nothing_is_kept_of_a_log_that_shares_no_epoch() -> None:
    one, other = Log(), Log()
    one.op(1, 5)
    other.op(2, 5)
    assert kept(one, other) == 0
    assert kept(one, Log()) == kept(Log(), one) == kept(Log(), Log()) == 0


def test_same_epoch_that_began_elsewhere_is_no_common_ground() -> None:
    """It can't happen. If it does, no body may be kept on a guess."""
    one = [EpochStart(1, 1, 0), EpochStart(2, 4, 30)]
    other = [EpochStart(1, 1, 0), EpochStart(2, 5, 30)]
    assert keep_below(one, 50, other, 60) == 30
    assert keep_below(one[1:], 50, other[1:], 60) == 0


def test_replica_that_was_away_for_too_many_epochs_keeps_nothing() -> None:
    one = Log()
    one.op(1, 3)
    other = one.copy()
    for epoch in range(2, EPOCHS_MAX + 2):
        other.op(epoch, 1)
    assert len(other.state.epochs) == EPOCHS_MAX
    assert kept(one, other) == 0


def test_state_travels_whole() -> None:
    log = Log()
    state = log.state
    state.begin_epoch(3)
    block = Block.of([b"a", b"b", b"c"])
    state.apply(1, Publish(0, block, False, b"one", 1))
    state.apply(2, Publish(3, block, True, b"two", 7))
    state.apply(3, Requeue(((1, 4),)))
    state.apply(4, Remove(((0, 0), (5, 5))))
    state.begin_epoch(9)
    copy = log.copy().state
    copy.check()
    assert copy == state
    assert copy.digest() == state.digest()
    assert [*copy.producers] == [b"one", b"two"]
