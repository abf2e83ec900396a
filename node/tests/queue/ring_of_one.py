"""The core of a queue's master without a ring: what its consumers are given and told."""

from __future__ import annotations

from node.tests.queue.memory import MemoryQueue

from ringmq_node.model.rules import QueueRules
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.effects import (
    DeliverMore,
    DeliverRuns,
    Effect,
    EndConsumer,
    EndReason,
    MulticastOp,
    TellActive,
    TellShort,
)
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AskedOp, Publish


class Scene:
    """A ring of one: every op is safe at once."""

    def __init__(self) -> None:
        self.queue = MemoryQueue()
        self.master = QueueMaster(self.queue.state, self.queue)
        # (consumer, position), and who was told what.
        self.given: list[tuple[int, int]] = []
        self.told: list[tuple[int, bool | EndReason]] = []
        self.short: list[TellShort] = []
        self.counts: dict[int, int] = {}
        # Ops that the ring refuses; None: it takes them.
        self.refused: list[AskedOp] | None = None

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case MulticastOp(op) if self.refused is not None:
                    self.refused.append(op)
                case MulticastOp(op):
                    self.do(self.master.applied(self.queue.append(op), op))
                    last = self.queue.state.last_number
                    self.do(self.master.watermarks(last, last))
                case DeliverRuns(consumer, runs):
                    for run in runs:
                        self.counts[run.first_position] = run.delivery_count
                        self.given += [
                            (consumer, at)
                            for at in range(run.first_position, run.last_position + 1)
                        ]
                case DeliverMore():
                    self.do(self.master.deliver_more())
                case TellActive(consumer, active):
                    self.told.append((consumer, active))
                case EndConsumer(consumer, reason):
                    self.told.append((consumer, reason))
                case TellShort():
                    self.short.append(effect)

    def publish(self, *bodies: bytes) -> None:
        first = self.queue.state.next_position
        op = Publish(first, Block.of([*bodies]))
        number = self.queue.append(op)
        self.do(self.master.published(number, op, -1))
        self.do(self.master.watermarks(number, number))

    def open(self, consumer: int, messages: int = 100, **terms: object) -> None:
        asked = ConsumerTerms(messages, 1000, **terms)  # type: ignore[arg-type]
        self.do(self.master.consumer_opened(consumer, asked))
        self.do(self.master.consumer_begun(consumer))

    def follow(self, **rules: object) -> None:
        self.do(self.master.follow(QueueRules(**rules)))  # type: ignore[arg-type]

    def take(self) -> list[tuple[int, int]]:
        given, self.given = self.given, []
        self.master.check()
        return given
