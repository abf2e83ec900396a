"""Credit along connection, channel, queue, and store and ring: which senders must wait. Pure.

A *party* is one stage: a connection, a channel (a publish stream), a queue. A *link* leads from a
sender to a receiver. The sender takes credit for each batch that it hands over; the receiver counts
the batches that it has passed on, and grants credit again each time that `more_after` messages, or
their share of the bytes, have gathered. A sender whose credit on some link is used up is *blocked*.
A receiver that is blocked itself, or *held* from outside (its ring is full, the disk is behind, an
alarm), defers its grants until it isn't. So a stop at the end of the chain stops its beginning,
with a bounded rest in each link.

By name, as in RabbitMQ: {200, 50} messages. A batch that finds any credit left passes whole, so a
link holds at most its credit and one batch.

Invariants (`check`), for each link:

    left + unprocessed + processed but not granted = initial credit    in messages, and in bytes

and a grant that is due waits only at a receiver that is stopped. A party that ends (`end`) takes
its links with it: its senders are looked at again, and nothing waits for a party that isn't there.
RabbitMQ's senders that stayed in `flow` for ever had missed the death of a receiver, or had
counted one twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

MESSAGES = 200
MORE_AFTER = 50
BYTES = 1 << 20

Party = Hashable


@dataclass(frozen=True, slots=True)
class Credit:
    """`messages` and `size_bytes` at the beginning; more comes after `more_after` messages, or the
    same share of the bytes."""

    messages: int = MESSAGES
    more_after: int = MORE_AFTER
    size_bytes: int = BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.more_after <= self.messages:
            raise ValueError(
                f"credit of {self.messages} messages, more after {self.more_after}: "
                "expected 1 to as many as the credit"
            )
        if self.size_bytes < self.messages:
            raise ValueError(f"credit of {self.size_bytes} bytes for {self.messages} messages")

    @property
    def more_after_bytes(self) -> int:
        return max(1, self.size_bytes * self.more_after // self.messages)


@dataclass(slots=True)
class _Amount:
    """Messages and bytes, which are counted side by side."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, other: _Amount) -> None:
        self.messages += other.messages
        self.size_bytes += other.size_bytes

    def subtract(self, other: _Amount) -> None:
        self.messages -= other.messages
        self.size_bytes -= other.size_bytes


@dataclass(slots=True)
class _Link:
    left: _Amount
    unprocessed: _Amount = field(default_factory=_Amount)
    owed: _Amount = field(default_factory=_Amount)

    @property
    def is_used_up(self) -> bool:
        return self.left.messages <= 0 or self.left.size_bytes <= 0


class CreditFlow:
    """Of one process. Parties are known from their first link on; any hashable names one."""

    def __init__(self, credit: Credit | None = None) -> None:
        self.credit = credit or Credit()
        # By sender, then by receiver; and the reverse.
        self._out: dict[Party, dict[Party, _Link]] = {}
        self._in: dict[Party, dict[Party, _Link]] = {}
        # The reasons from outside that hold a receiver.
        self._held: set[Party] = set()

    # --- questions ---

    def is_blocked(self, sender: Party) -> bool:
        """Whether it has to wait before it takes anything more, from any sender."""
        return any(link.is_used_up for link in self._out.get(sender, {}).values())

    def may_send(self, sender: Party, receiver: Party) -> bool:
        link = self._out.get(sender, {}).get(receiver)
        return link is None or not link.is_used_up

    @property
    def links(self) -> int:
        return sum(map(len, self._out.values()))

    # --- events; each returns the senders that aren't blocked any more ---

    def take(self, sender: Party, receiver: Party, messages: int, size_bytes: int) -> None:
        """The sender hands a batch over; it must be allowed to (`may_send`)."""
        assert messages > 0, messages
        link = self._link(sender, receiver)
        assert not link.is_used_up, (sender, receiver)
        amount = _Amount(messages, size_bytes)
        link.left.subtract(amount)
        link.unprocessed.add(amount)

    def processed(
        self, sender: Party, receiver: Party, messages: int, size_bytes: int
    ) -> list[Party]:
        """The receiver has passed it on, or has refused it. Nothing if either has ended."""
        link = self._out.get(sender, {}).get(receiver)
        if link is None:
            return []
        amount = _Amount(messages, size_bytes)
        link.unprocessed.subtract(amount)
        assert link.unprocessed.messages >= 0, (sender, receiver)
        assert link.unprocessed.size_bytes >= 0, (sender, receiver)
        link.owed.add(amount)
        return self._grant(receiver)

    def hold(self, party: Party) -> None:
        """It can pass nothing on."""
        self._held.add(party)

    def release(self, party: Party) -> list[Party]:
        self._held.discard(party)
        return self._grant(party)

    def end(self, party: Party) -> list[Party]:
        """It is gone, and its debts and claims with it."""
        self._held.discard(party)
        senders = list(self._in.pop(party, {}))
        before = [sender for sender in senders if self.is_blocked(sender)]
        for sender in senders:
            _remove(self._out, sender, party)
        for receiver in self._out.pop(party, {}):
            _remove(self._in, receiver, party)
        return self._freed(before)

    # --- inside ---

    def _link(self, sender: Party, receiver: Party) -> _Link:
        link = self._out.setdefault(sender, {}).get(receiver)
        if link is None:
            link = _Link(_Amount(self.credit.messages, self.credit.size_bytes))
            self._out[sender][receiver] = link
            self._in.setdefault(receiver, {})[sender] = link
        return link

    def _is_stopped(self, party: Party) -> bool:
        return party in self._held or self.is_blocked(party)

    def _is_due(self, link: _Link) -> bool:
        # So a sender that has handed over all of its credit is never left behind: once that is
        # processed, the whole credit is owed, or more.
        credit = self.credit
        return (
            link.owed.messages >= credit.more_after
            or link.owed.size_bytes >= credit.more_after_bytes
        )

    def _grant(self, receiver: Party) -> list[Party]:
        """Gives the credit that is due here, and at the receivers that wait behind."""
        freed: list[Party] = []
        waiting = [receiver]
        while waiting:
            party = waiting.pop()
            if self._is_stopped(party):
                continue
            for sender, link in self._in.get(party, {}).items():
                if not self._is_due(link):
                    continue
                was_blocked = self.is_blocked(sender)
                link.left.add(link.owed)
                link.owed = _Amount()
                if was_blocked and not self.is_blocked(sender):
                    freed.append(sender)
                    waiting.append(sender)
        return freed

    def _freed(self, before: list[Party]) -> list[Party]:
        freed = [sender for sender in before if not self.is_blocked(sender)]
        for sender in list(freed):
            freed += self._grant(sender)
        return freed

    def check(self) -> None:
        """The invariants."""
        credit = self.credit
        for sender, links in self._out.items():
            for receiver, link in links.items():
                assert self._in[receiver][sender] is link
                parts = (link.left, link.unprocessed, link.owed)
                assert sum(part.messages for part in parts) == credit.messages
                assert sum(part.size_bytes for part in parts) == credit.size_bytes
                if self._is_due(link):
                    assert self._is_stopped(receiver), (sender, receiver, link)
        assert self.links == sum(map(len, self._in.values()))


def _remove(table: dict[Party, dict[Party, _Link]], party: Party, other: Party) -> None:
    links = table[party]
    del links[other]
    if not links:
        del table[party]
