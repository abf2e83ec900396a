"""Credit is never lost: whatever is sent, held, and whoever dies."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringmq_node.resources.credit import BYTES, MESSAGES, MORE_AFTER, Credit, CreditFlow, Party


def test_the_credit_by_name_is_200_and_50() -> None:
    assert (MESSAGES, MORE_AFTER) == (200, 50)
    assert Credit().more_after_bytes == BYTES // 4


@pytest.mark.parametrize("numbers", [(0, 0, 1), (10, 0, 100), (10, 11, 100), (100, 50, 99)])
def test_credit_that_grants_nothing_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="credit of"):
        Credit(*numbers)


def test_a_sender_is_blocked_at_200_and_goes_on_after_50() -> None:
    flow = CreditFlow()
    for _ in range(200):
        assert flow.may_send("channel", "queue")
        flow.take("channel", "queue", 1, 10)
    assert flow.is_blocked("channel")
    for _ in range(49):
        assert flow.processed("channel", "queue", 1, 10) == []
    assert flow.processed("channel", "queue", 1, 10) == ["channel"]
    flow.check()


def test_a_batch_passes_whole_and_large_ones_one_by_one() -> None:
    flow = CreditFlow()
    flow.take("channel", "queue", 1000, 50 * BYTES)
    assert not flow.may_send("channel", "queue")
    assert flow.processed("channel", "queue", 1000, 50 * BYTES) == ["channel"]
    assert flow.may_send("channel", "queue")
    flow.check()


def test_a_held_queue_stops_the_whole_chain_and_no_other_queue() -> None:
    flow = CreditFlow(Credit(2, 1, 1000))
    flow.hold("slow")
    for _ in range(2):
        flow.take("connection", "channel", 1, 1)
        flow.take("channel", "slow", 1, 1)
    flow.take("connection", "other channel", 1, 1)
    flow.take("other channel", "quick", 1, 1)
    assert flow.processed("channel", "slow", 1, 1) == []
    # The channel is blocked: it grants its connection nothing.
    assert flow.is_blocked("channel")
    assert flow.processed("connection", "channel", 2, 2) == []
    assert flow.may_send("other channel", "quick")
    flow.check()
    assert flow.release("slow") == ["channel", "connection"]
    flow.check()


def test_the_death_of_a_receiver_frees_its_senders() -> None:
    flow = CreditFlow(Credit(1, 1, 1000))
    flow.take("connection", "channel", 1, 1)
    flow.take("channel", "queue", 1, 1)
    assert flow.processed("connection", "channel", 1, 1) == []
    assert flow.end("queue") == ["channel", "connection"]
    # What comes late of the dead one counts for nobody.
    assert flow.processed("channel", "queue", 1, 1) == []
    assert flow.links == 1
    flow.check()


CREDIT = Credit(6, 2, 600)
CONNECTIONS = ["connection 0", "connection 1"]
CHANNELS = [f"channel {number}" for number in range(4)]
QUEUES = [f"queue {number}" for number in range(3)]
NEXT = {**dict.fromkeys(CONNECTIONS, CHANNELS), **dict.fromkeys(CHANNELS, QUEUES)}
PARTIES = [*CONNECTIONS, *CHANNELS, *QUEUES]


class CreditMachine(RuleBasedStateMachine):
    """Parties send, pass on, are held and die at random. The model: a list of what is on its way
    on each link."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = CreditFlow(CREDIT)
        self.on_way: dict[tuple[Party, Party], list[tuple[int, int]]] = {}
        self.held: set[Party] = set()

    @rule(
        sender=st.sampled_from([*CONNECTIONS, *CHANNELS]),
        number=st.integers(0, 3),
        messages=st.integers(1, 9),
        each=st.integers(0, 200),
    )
    def send(self, sender: str, number: int, messages: int, each: int) -> None:
        receivers = NEXT[sender]
        receiver = receivers[number % len(receivers)]
        if not self.flow.is_blocked(sender):
            self.flow.take(sender, receiver, messages, messages * each)
            self.on_way.setdefault((sender, receiver), []).append((messages, messages * each))

    @precondition(lambda self: self.on_way)
    @rule(data=st.data())
    def pass_on(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted(self.on_way, key=str)))
        batches = self.on_way[link]
        self._freed(self.flow.processed(*link, *batches.pop(0)))
        if not batches:
            del self.on_way[link]

    @rule(party=st.sampled_from(PARTIES))
    def hold(self, party: str) -> None:
        self.flow.hold(party)
        self.held.add(party)

    @rule(party=st.sampled_from(PARTIES))
    def release(self, party: str) -> None:
        self._freed(self.flow.release(party))
        self.held.discard(party)

    @rule(party=st.sampled_from(PARTIES))
    def die(self, party: str) -> None:
        self._freed(self.flow.end(party))
        self.held.discard(party)
        for link in [link for link in self.on_way if party in link]:
            for batch in self.on_way.pop(link):
                assert self.flow.processed(*link, *batch) == []

    def _freed(self, freed: list[Party]) -> None:
        assert len(set(freed)) == len(freed)
        for party in freed:
            assert not self.flow.is_blocked(party)

    @invariant()
    def credit_is_conserved(self) -> None:
        self.flow.check()

    def teardown(self) -> None:
        """Once nothing is held and all is passed on, nobody is blocked."""
        for party in sorted(self.held, key=str):
            self.flow.release(party)
        for link, batches in self.on_way.items():
            for batch in batches:
                self.flow.processed(*link, *batch)
        self.flow.check()
        for party in PARTIES:
            assert not self.flow.is_blocked(party), party


TestCredit = CreditMachine.TestCase
TestCredit.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
