"""The credit of one publish stream at its queue: how much of it is read ahead of the queue. Pure.

The stream takes credit for each batch that it reads while the queue takes none. When the queue has
taken batches, the stream gets their credit again, as soon as `more_after` messages, or their share
of the bytes, have gathered. A stream whose credit is used up is *blocked*, and isn't read.

By name, as in RabbitMQ: {200, 50} messages. A batch that finds any credit left passes whole, so a
stream holds at most its credit and one batch.

This is one link of the way from a connection to the ring. The links before and behind it are the
transport's windows and the limits in bytes of queue, ring and store: decision 0068. None of them
knows of this one. A stream that isn't read holds its window, and a queue at its limit takes no
batch, so a stop at the end stops the beginning.

Invariants (`check`):

    left + unprocessed + owed = initial credit    in messages, and in bytes

and less is owed than what is granted at once. So a stream that has used up all of its credit is
never left behind: once its batches are processed, the whole credit was owed, and is granted. What a
stream has taken ends with the stream: the queue knows nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MESSAGES = 200
MORE_AFTER = 50
BYTES = 1 << 20


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
class StreamCredit:
    """See the module."""

    credit: Credit
    _left: _Amount = field(init=False)
    _unprocessed: _Amount = field(default_factory=_Amount, init=False)
    _owed: _Amount = field(default_factory=_Amount, init=False)

    def __post_init__(self) -> None:
        self._left = _Amount(self.credit.messages, self.credit.size_bytes)

    @property
    def is_blocked(self) -> bool:
        """Whether the stream has to wait before it takes anything more."""
        return self._left.messages <= 0 or self._left.size_bytes <= 0

    def take(self, messages: int, size_bytes: int) -> None:
        """The stream has read a batch; it must not be blocked."""
        assert messages > 0, messages
        assert not self.is_blocked, self
        amount = _Amount(messages, size_bytes)
        self._left.subtract(amount)
        self._unprocessed.add(amount)

    def processed(self, messages: int, size_bytes: int) -> None:
        """The queue has taken the batch, or has refused it."""
        amount = _Amount(messages, size_bytes)
        self._unprocessed.subtract(amount)
        assert self._unprocessed.messages >= 0, self
        assert self._unprocessed.size_bytes >= 0, self
        self._owed.add(amount)
        if self._is_due:
            self._left.add(self._owed)
            self._owed = _Amount()

    @property
    def _is_due(self) -> bool:
        owed, credit = self._owed, self.credit
        return owed.messages >= credit.more_after or owed.size_bytes >= credit.more_after_bytes

    def check(self) -> None:
        """The invariants."""
        parts = (self._left, self._unprocessed, self._owed)
        assert sum(part.messages for part in parts) == self.credit.messages
        assert sum(part.size_bytes for part in parts) == self.credit.size_bytes
        assert not self._is_due, self
