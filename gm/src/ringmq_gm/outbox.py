"""What waits to be sent to one node: frames in, messages out. Pure.

The rule of who may overtake whom, from what the member core does with each frame:

* Hello, OpFrame, MarksFrame and Submit of one ring keep their order. Marks may not
  overtake ops of their ring: 1. op 10 waits with marks "A has 9", 2. "A has 10"
  overtakes it, 3. the receiver takes both as they come, believes "A has 9", and
  passes that on; A has nothing more to say, and op 10 is never confirmed.
* Ping, Pong, Stale and Resume go at any time: each says something that holds for
  itself. Of each kind and ring only the newest waits.
* Rings don't wait for each other. First goes what has no body before it in its
  ring, then the bodies, from each ring in turn.

What is overtaken is left out, so that a ring never has more waiting here than it
has in its cache (whose payloads these are, not copies):

* A newer MarksFrame, or an op with marks, replaces a MarksFrame that still waits.
* A frame of a newer epoch replaces all of its ring (they would be refused).
* An op replaces those with its number and above: the core sends again from there.

A frame over `part_bytes` travels in parts, and frames of other rings, and
heartbeats, go in between. Its own ring waits behind it.

Invariants (`check`): op numbers rise within a lane; one is heavy if and only if a
body waits in it, or is on its way in parts; sizes are the sums of what waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ringmq_gm.frames import (
    Frame,
    Hello,
    MarksFrame,
    OpFrame,
    Ping,
    Pong,
    Resume,
    Stale,
    Submit,
    encode,
)
from ringmq_gm.wire import LAST_PART, PART, WHOLE, frames_message

# What one ring may send before it is the next one's turn.
TURN_BYTES = 64 * 1024


@dataclass(slots=True)
class Lane:
    """What waits of one ring, in order; `marks` come after the rest."""

    epoch: int
    frames: deque[Hello | OpFrame | MarksFrame | Submit] = field(default_factory=deque)
    marks: MarksFrame | None = None
    # The highest op among `frames`; 0 if there is none.
    last_number: int = 0
    bodies: int = 0
    body_bytes: int = 0


class Outbox:
    """See the module. For one session of a link."""

    def __init__(self, *, message_bytes: int, part_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._part_bytes = part_bytes
        self._control: dict[tuple[str, type], Frame] = {}
        self._light: dict[str, Lane] = {}
        self._heavy: dict[str, Lane] = {}
        self._parts: deque[bytes] = deque()
        self._parts_ring = ""

    def __bool__(self) -> bool:
        return bool(self._control or self._light or self._heavy or self._parts)

    @property
    def has_bodies(self) -> bool:
        return bool(self._heavy or self._parts)

    def waiting_bytes(self, ring: str) -> int:
        """The payloads of this ring's ops and submits that wait."""
        lane = self._heavy.get(ring)
        return lane.body_bytes if lane is not None else 0

    # --- in ---

    def put(self, frame: Frame) -> None:
        match frame:
            case OpFrame():
                lane = self._lane(frame)
                if lane is not None:
                    self._put_op(lane, frame)
            case MarksFrame():
                lane = self._lane(frame)
                if lane is not None:
                    lane.marks = frame
            case Hello():
                lane = self._lane(frame)
                if lane is not None:
                    self._flush_marks(lane)
                    lane.frames.append(frame)
            case Submit():
                lane = self._lane(frame)
                if lane is not None:
                    self._flush_marks(lane)
                    self._put_body(lane, frame)
            case Ping() | Pong() | Stale() | Resume():
                self._control[frame.ring, type(frame)] = frame

    def forget(self, ring: str) -> None:
        """The ring isn't hosted here any more: nothing of it is sent."""
        for key in [key for key in self._control if key[0] == ring]:
            del self._control[key]
        self._light.pop(ring, None)
        lane = self._heavy.get(ring)
        if lane is not None:
            # Made again, the ring begins with a low epoch.
            self._clear(lane, 0)
            self._settle(ring, lane)

    def _lane(self, frame: Hello | OpFrame | MarksFrame | Submit) -> Lane | None:
        """The lane for this frame; None if what waits there is of a newer epoch."""
        ring = frame.ring
        lane = self._light.get(ring) or self._heavy.get(ring)
        if lane is None:
            lane = Lane(frame.epoch)
            (self._heavy if ring == self._parts_ring else self._light)[ring] = lane
        elif lane.epoch != frame.epoch:
            if lane.epoch > frame.epoch:
                return None
            self._clear(lane, frame.epoch)
            if ring in self._heavy and ring != self._parts_ring:
                self._light[ring] = self._heavy.pop(ring)
        return lane

    def _clear(self, lane: Lane, epoch: int) -> None:
        lane.epoch = epoch
        lane.frames.clear()
        lane.marks = None
        lane.last_number = lane.bodies = lane.body_bytes = 0

    def _flush_marks(self, lane: Lane) -> None:
        if lane.marks is not None:
            lane.frames.append(lane.marks)
            lane.marks = None

    def _put_op(self, lane: Lane, op: OpFrame) -> None:
        if lane.marks is not None and len(op.marks) < len(lane.marks.marks):
            self._flush_marks(lane)
        lane.marks = None
        if op.number <= lane.last_number:
            self._drop_from(lane, op.number)
        lane.last_number = op.number
        self._put_body(lane, op)

    def _drop_from(self, lane: Lane, number: int) -> None:
        """The core sends ops again, from `number` on: what waits of them goes."""
        frames = lane.frames
        lane.frames = deque(
            frame for frame in frames if not (isinstance(frame, OpFrame) and frame.number >= number)
        )
        waiting = [frame for frame in lane.frames if isinstance(frame, OpFrame | Submit)]
        lane.bodies = len(waiting)
        lane.body_bytes = sum(len(frame.payload) for frame in waiting)

    def _put_body(self, lane: Lane, frame: OpFrame | Submit) -> None:
        lane.frames.append(frame)
        lane.bodies += 1
        lane.body_bytes += len(frame.payload)
        if frame.ring in self._light:
            self._heavy[frame.ring] = self._light.pop(frame.ring)

    # --- out ---

    def take(self, *, bodies: bool) -> bytes | None:
        """The next message; None if there is nothing that may go. Without `bodies`, only
        frames go that have no body before them."""
        pieces: list[bytes] = []
        for frame in self._control.values():
            pieces += encode(frame)
        self._control.clear()
        for lane in self._light.values():
            for frame in lane.frames:
                pieces += encode(frame)
            if lane.marks is not None:
                pieces += encode(lane.marks)
        self._light.clear()
        if bodies and not self._parts:
            self._take_bodies(pieces)
        if pieces:
            return frames_message(WHOLE, pieces)
        if bodies and self._parts:
            return self._take_part()
        return None

    def _take_bodies(self, pieces: list[bytes]) -> None:
        size = sum(map(len, pieces))
        while self._heavy and size < self._message_bytes:
            ring = next(iter(self._heavy))
            lane = self._heavy[ring]
            turn = 0
            while lane.frames and turn < TURN_BYTES:
                encoded = encode(lane.frames[0])
                length = sum(map(len, encoded))
                if length > self._part_bytes:
                    if not pieces:
                        self._drop_first(lane)
                        self._split(ring, encoded)
                    return
                self._drop_first(lane)
                pieces += encoded
                turn += length
            size += turn
            if not lane.frames and lane.marks is not None:
                pieces += encode(lane.marks)
            # To the end of the line, if anything is left.
            del self._heavy[ring]
            if lane.frames:
                (self._heavy if lane.bodies else self._light)[ring] = lane

    def _drop_first(self, lane: Lane) -> None:
        frame = lane.frames.popleft()
        if isinstance(frame, OpFrame | Submit):
            lane.bodies -= 1
            lane.body_bytes -= len(frame.payload)

    def _split(self, ring: str, encoded: list[bytes]) -> None:
        whole = b"".join(encoded)
        step = self._part_bytes
        self._parts.extend(whole[at : at + step] for at in range(0, len(whole), step))
        self._parts_ring = ring

    def _take_part(self) -> bytes:
        part = self._parts.popleft()
        if self._parts:
            return frames_message(PART, [part])
        ring, self._parts_ring = self._parts_ring, ""
        if ring in self._heavy:
            self._settle(ring, self._heavy[ring])
        return frames_message(LAST_PART, [part])

    def _settle(self, ring: str, lane: Lane) -> None:
        """Puts a heavy lane that may have lost its last body where it belongs now."""
        if lane.bodies or ring == self._parts_ring:
            return
        del self._heavy[ring]
        if lane.frames or lane.marks is not None:
            self._light[ring] = lane

    def check(self) -> None:
        """The invariants, for tests."""
        assert not set(self._light) & set(self._heavy)
        assert bool(self._parts) == bool(self._parts_ring)
        for ring, lane in [*self._light.items(), *self._heavy.items()]:
            waiting = [frame for frame in lane.frames if isinstance(frame, OpFrame | Submit)]
            assert lane.bodies == len(waiting)
            assert lane.body_bytes == sum(len(frame.payload) for frame in waiting)
            heavy = bool(waiting) or ring == self._parts_ring
            assert heavy == (ring in self._heavy), (ring, heavy)
            numbers = [frame.number for frame in waiting if isinstance(frame, OpFrame)]
            assert numbers == sorted(set(numbers))
