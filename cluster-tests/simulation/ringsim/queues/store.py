"""A queue's store in memory, over a disk that keeps a prefix of the records written.

It has the methods of `QueueStore` that a replica uses. Beside the state it keeps the ops that have
made it (`log`), which no replica needs: the oracle compares logs, and knows by them what each
position should hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import PackedParts
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Checkpoint
from ringsim.queues.payloads import Bodies, bodies_of, op_of
from ringsim.simulator.application import BrokenInvariantError, LogEntry, VirtualDisk

# So that others run in between, as a rule: `course` says when a piece of work is over.
_STEPS_OF_CHANGES = 20


class GhostState(ReplicatedState):
    """A state that one replica gives to another, with the ops that have made it."""

    __slots__ = ("log",)

    log: list[LogEntry]

    @classmethod
    def of(cls, store: VirtualStore) -> GhostState:
        state = store.state.copy()
        ghost = cls(*(getattr(state, each.name) for each in fields(state)))
        ghost.log = store.log.copy()
        return ghost


@dataclass(frozen=True, slots=True)
class OpRecord:
    number: int
    epoch: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class InstallRecord:
    """From here on the log is that of `state`; of the bodies before, those below `keep_below`
    stay."""

    state: GhostState
    log: tuple[LogEntry, ...]
    keep_below: int


@dataclass(frozen=True, slots=True)
class FillRecord:
    bodies: Bodies


Record = OpRecord | InstallRecord | FillRecord


class QueueDisk(VirtualDisk):
    """Outlives a crash. `log` are the ops of `records`, and `bodies` the bodies in them."""

    def __init__(self, incarnation: int) -> None:
        super().__init__(incarnation=incarnation)
        self.records: list[Record] = []
        self.bodies: Bodies = {}

    def write(self, records: Sequence[Record]) -> None:
        self.records += records
        for record in records:
            match record:
                case OpRecord(_, epoch, payload):
                    self.log.append((epoch, payload))
                    op = op_of(payload)
                    if isinstance(op, Publish):
                        self.bodies.update(bodies_of(op))
                case InstallRecord(_, log, keep_below):
                    self.log = list(log)
                    self.bodies = {p: b for p, b in self.bodies.items() if p < keep_below}
                    # Bodies that were missing unnoticed have come with the state, or are fetched.
                    self.is_cut_unseen = False
                case FillRecord(bodies):
                    self.bodies.update(bodies)

    def copy(self) -> list[Record]:
        return self.records.copy()

    def put_back(self, copy: Sequence[object]) -> None:
        """The disk has this older copy from now on, or nothing; and that is noticed."""
        self._rewrite([each for each in copy if isinstance(each, Record)])
        self.whole = self.is_cut_unseen = False

    def cut_unseen(self, count: int) -> None:
        if not self.whole or count >= len(self.log):
            return
        kept = self.records.copy()
        while len(self.log) > count:
            kept.pop()
            self._rewrite(kept)
        self.is_cut_unseen = True

    def _rewrite(self, records: list[Record]) -> None:
        self.log, self.records, self.bodies = [], [], {}
        self.write(records)

    def holds(self, number: int, entry: LogEntry) -> bool:
        # Whatever its mark says (`whole`): that is taken away only when this node has heard that
        # the view counts it.
        return self.has_op(number, entry) and not self._lacks_body(entry)

    def _lacks_body(self, entry: LogEntry) -> bool:
        """Whether a body of this op is neither here nor consumed."""
        op = op_of(entry[1])
        if not isinstance(op, Publish):
            return False
        lacking = [
            p for p in range(op.first_position, op.last_position + 1) if p not in self.bodies
        ]
        return bool(lacking) and any(p in self._live() for p in lacking)

    def _live(self) -> RangeSet:
        return _recovered(self.records)[0].live


def _recovered(records: Sequence[Record]) -> tuple[ReplicatedState, list[LogEntry], Bodies]:
    """The state, the log and the bodies that these records make."""
    state, log, bodies = ReplicatedState(), list[LogEntry](), Bodies()
    for record in records:
        match record:
            case OpRecord(number, epoch, payload):
                if epoch > state.epoch:
                    state.begin_epoch(epoch)
                op = op_of(payload)
                if isinstance(op, Publish):
                    bodies.update(bodies_of(op))
                state.apply(number, op)
                log.append((epoch, payload))
            case InstallRecord(installed, installed_log, keep_below):
                state, log = installed.copy(), list(installed_log)
                bodies = {p: body for p, body in bodies.items() if p < keep_below}
            case FillRecord(filled):
                bodies.update(filled)
    return state, log, {p: body for p, body in bodies.items() if p in state.live}


def _check_packed(state: ReplicatedState, packed: PackedParts) -> None:
    """The checkpoint of parts that were packed beforehand is that of the state as it is now."""
    if checkpoint.encode(Checkpoint(1, state, packed=packed)) != checkpoint.encode(
        Checkpoint(1, state)
    ):
        raise BrokenInvariantError("a state has changed after it was packed for its checkpoint")


@dataclass(frozen=True, slots=True)
class VirtualChanges:
    """What the changes of an install were computed of: the store's own state, and the new one."""

    own: ReplicatedState
    new: ReplicatedState

    def check(self, own: ReplicatedState, new: ReplicatedState) -> None:
        if not (own.copy().is_same(self.own) and new.copy().is_same(self.new)):
            raise BrokenInvariantError("a state has changed after its changes were computed")

    def let_go(self) -> Iterator[None]:
        for _ in range(_STEPS_OF_CHANGES):
            yield


class VirtualStore:
    """The memory of one life. `dirty` is told that there is something to be written."""

    def __init__(self, disk: QueueDisk, dirty: Callable[[], None], reached: Counter[str]) -> None:
        self.queue = "q"
        self.durable = True
        self.damaged = False
        self.disk = disk
        self.state, self.log, self.bodies = _recovered(disk.records)
        self.missing = RangeSet()
        self._find_missing()
        self.durable_number = self.state.last_number
        self.on_lost: Callable[[], None] = lambda: None
        # Records that aren't on disk yet.
        self.pending: list[Record] = []
        # Whether the state that a joiner fetches is still to come: the log is of before it.
        self.catching_up = False
        self._dirty = dirty
        self._reached = reached
        self._installs = 0

    # -- the simulator's side

    @property
    def unsynced(self) -> int:
        return len(self.pending)

    def crash(self, kept_count: int) -> None:
        """`kept_count` of the records that were not synced made it to the disk."""
        self.disk.write(self.pending[:kept_count])

    def written(self, count: int, installs: int) -> None:
        """The first `count` of the pending records are on disk."""
        self.disk.write(self.pending[:count])
        del self.pending[:count]
        if installs == self._installs:
            self.durable_number = len(self.disk.log)

    @property
    def installs(self) -> int:
        return self._installs

    # -- the replica's side

    def set_lazy(self, lazy: bool) -> None:
        """It has no memory to save."""

    async def wait_room(self) -> None:
        """There is always room."""

    def begin_epoch(self, epoch: int) -> None:
        self.state.begin_epoch(epoch)

    def append(self, number: int, op: Op, payload: bytes) -> list[Range]:
        if isinstance(op, Publish):
            self.bodies.update(bodies_of(op))
        gone = self.state.apply(number, op)
        for first, last in gone:
            self.missing.remove(first, last)
            for position in range(first, last + 1):
                self.bodies.pop(position, None)
        self.log.append((self.state.epoch, payload))
        self._append(OpRecord(number, self.state.epoch, payload))
        return gone

    async def changes_to(self, state: ReplicatedState, *, keep_below: int) -> VirtualChanges:
        changes = VirtualChanges(self.state.copy(), state.copy())
        pieces = Pieces()
        for _ in range(_STEPS_OF_CHANGES):
            await pieces.step()
        return changes

    def install(
        self,
        state: ReplicatedState,
        *,
        keep_below: int,
        packed: PackedParts | None = None,
        changes: VirtualChanges | None = None,
    ) -> None:
        _check_packed(state, packed or PackedParts())
        if changes is not None:
            changes.check(self.state, state)
        log = state.log if isinstance(state, GhostState) else self.log
        if keep_below < min(self.state.next_position, state.next_position):
            self._reached["queue: a joiner's log has parted from the ring's"] += 1
        self.state, self.log = state, log
        self.durable_number = 0
        self.catching_up = False
        self._installs += 1
        kept = {p: body for p, body in self.bodies.items() if p < keep_below and p in state.live}
        self.bodies = kept
        check_bodies(self)
        self._find_missing()
        self._append(InstallRecord(GhostState.of(self), tuple(log), keep_below))

    def fill(self, first_position: int, block: Block, transient: bool) -> None:
        filled: Bodies = {}
        for position, body in enumerate(block.bodies(), first_position):
            if position in self.missing:
                filled[position] = (bytes(body), transient)
        if filled:
            self.bodies.update(filled)
            self._reached["queue: bodies are fetched"] += len(filled)
            check_bodies(self)
            for position in filled:
                self.missing.remove(position, position)
            self._append(FillRecord(filled))

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        return self.read(first, last, bytes_max=bytes_max, messages_max=messages_max)

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        """Each message as a run of its own."""
        runs: list[Run] = []
        for position in self._live_here(first, last):
            body, transient = self.bodies[position]
            if len(runs) == messages_max or (runs and len(body) > bytes_max):
                break
            bytes_max -= len(body)
            redelivered = position in self.state.redelivered
            runs.append(Run(position, Block.of([body]), transient, redelivered))
        return runs

    def bytes_in(self, first: int, last: int) -> int:
        return sum(len(self.bodies[position][0]) for position in self._live_here(first, last))

    # -- inside

    def _live_here(self, first: int, last: int) -> Iterator[int]:
        for low, high in self.state.live.intersection(first, last):
            yield from (p for p in range(low, high + 1) if p in self.bodies)

    def _find_missing(self) -> None:
        self.missing = RangeSet(
            (p, p)
            for low, high in self.state.live
            for p in range(low, high + 1)
            if p not in self.bodies
        )

    def _append(self, record: Record) -> None:
        self.pending.append(record)
        self._dirty()


def check_bodies(store: VirtualStore) -> None:
    """Each body that is here is the one that was published at its position."""
    if not store.bodies:
        return
    published: Bodies = {}
    for _, payload in store.log:
        op = op_of(payload)
        if isinstance(op, Publish):
            published.update(bodies_of(op))
    for position, body in store.bodies.items():
        if body != published[position]:
            raise BrokenInvariantError(
                f"{body!r} is at {position}, where {published[position]!r} was published"
            )
