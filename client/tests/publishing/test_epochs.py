"""What a client remembers of the epochs of queues is bounded."""

from __future__ import annotations

import gc

from ringmq.publishing import epochs
from ringmq.publishing.epochs import SeenEpochs


def test_the_publishers_of_a_queue_share_its_epoch_also_one_after_the_other() -> None:
    seen = SeenEpochs()
    assert seen.of("q").take("id", 7)
    assert not seen.of("q").take("id", 6)
    assert seen.of("other").take("id", 6)


def test_ever_new_queues_are_forgotten_but_for_those_in_use() -> None:
    seen = SeenEpochs()
    used = seen.of("used")
    used.take("id", 7)
    for number in range(3 * epochs.KEPT_MAX):
        seen.of(f"q{number}").take("id", 3)
    gc.collect()
    assert seen.of("used") is used
    last = 3 * epochs.KEPT_MAX - 1
    assert seen.of(f"q{last}").epoch == 3
    assert seen.of("q0").epoch == 0
    assert len(seen) <= epochs.KEPT_MAX + 1
