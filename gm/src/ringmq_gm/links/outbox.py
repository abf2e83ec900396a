"""The frames that wait to be sent to one node: frames in, messages out. Pure.

Which frame may overtake which follows from the meaning of each to the receiving member:

* Hello, OpFrame, MarksFrame and Submit of one ring keep their order. Marks may not overtake ops of
  their ring: 1. op 10 waits with marks "A has 9", 2. "A has 10" overtakes it, 3. the receiver
  takes both as they come, believes "A has 9", and passes that on; A has nothing more to say, and
  op 10 is never confirmed.
* Ping, Pong, Gone, Resume and the frames about views go at any time: each holds by itself. Of
  each kind and ring only the newest waits.
* Rings don't wait for each other. Frames without a body before them in their ring go first, then
  the bodies, from each ring in turn.

Overtaken frames are left out. So a ring never has more bytes waiting here than in its cache, and
shares the payloads with it:

* A newer MarksFrame, or an op with marks, replaces a MarksFrame that still waits.
* A frame of a newer epoch replaces all frames of its ring (they would be refused).
* An op replaces those with its number and above: the core sends again from there.
* Ops that a newer frame says are stable are left out. They wait here only for a joiner that was
  left behind, which fetches them: the core doesn't keep them any more either.

A frame over `part_bytes` travels in parts, one frame at a time; messages of the other rings go in
between, turn and turn about. Its own ring waits behind it.

A frame that waits alone is kept by itself: a quiet link sends each frame before the next one comes,
and needs no lanes for that. Its way out is the same.

Invariants (`check`): a frame that is alone has no lanes beside it; a ring has one lane, which is
light (no body waits in it), heavy (one does), or behind the frame that is on its way in parts; op
numbers rise within a lane; sizes are the sums over the waiting frames.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ringmq_gm.core.frames import (
    Frame,
    Hello,
    MarksFrame,
    OpFrame,
    Submit,
    encode,
)
from ringmq_gm.links.wire import LAST_PART, PART, WHOLE, frames_message

# One ring may send so much before it is the next one's turn.
TURN_BYTES = 64 * 1024


# The frames that keep their order within a ring.
Ordered = Hello | OpFrame | MarksFrame | Submit
# The frames with a payload. `OpFrame | Submit` would be made anew at each look.
BODIES = (OpFrame, Submit)


@dataclass(slots=True)
class Lane:
    """The waiting frames of one ring, in order; `marks` come after the rest."""

    epoch: int
    frames: deque[Ordered] = field(default_factory=deque)
    marks: MarksFrame | None = None
    # The highest op among `frames`; 0 if there is none.
    last_number: int = 0
    bodies: int = 0
    body_bytes: int = 0


class LinkOutbox:
    """See the module. For one session of a link."""

    def __init__(self, *, message_bytes: int, part_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._part_bytes = part_bytes
        # OrderedDict: a plain dict takes long to find its first item once many were removed.
        self._control: OrderedDict[tuple[str, type], Frame] = OrderedDict()
        self._light: OrderedDict[str, Lane] = OrderedDict()
        # In the order of their turns.
        self._heavy: OrderedDict[str, Lane] = OrderedDict()
        self._parts: deque[bytes] = deque()
        # The one ring whose frame the parts are.
        self._behind: dict[str, Lane] = {}
        self._part_has_turn = False
        # The only frame that waits; with it all of the above is empty.
        self._alone: Frame | None = None

    def __bool__(self) -> bool:
        return self._alone is not None or self._has_lanes

    @property
    def _has_lanes(self) -> bool:
        return bool(self._control or self._light or self._heavy or self._parts)

    @property
    def has_bodies(self) -> bool:
        return bool(self._heavy or self._parts) or isinstance(self._alone, BODIES)

    def waiting_bytes(self, ring: str) -> int:
        """The payloads of this ring's ops and submits that wait."""
        self._join_lanes()
        lane = self._heavy.get(ring) or self._behind.get(ring)
        return lane.body_bytes if lane is not None else 0

    # --- in ---

    def put(self, frame: Frame) -> None:
        if self._alone is None and not self._has_lanes:
            self._alone = frame
            return
        self._join_lanes()
        self._put(frame)

    def _join_lanes(self) -> None:
        """The frame that is alone gets into its lane."""
        frame, self._alone = self._alone, None
        if frame is not None:
            self._put(frame)

    def _put(self, frame: Frame) -> None:
        match frame:
            case OpFrame() | MarksFrame() | Hello() | Submit():
                lane = self._lane(frame)
                if lane is not None:
                    self._put_in_order(lane, frame)
            case _:
                self._control[frame.ring, type(frame)] = frame

    def forget(self, ring: str) -> None:
        """The ring isn't hosted here any more: nothing of it is sent."""
        self._join_lanes()
        for key in [key for key in self._control if key[0] == ring]:
            del self._control[key]
        self._light.pop(ring, None)
        self._heavy.pop(ring, None)
        if ring in self._behind:
            # If the ring is made again, it begins with a low epoch.
            self._behind[ring] = Lane(0)

    def _lane(self, frame: Ordered) -> Lane | None:
        """The lane for this frame; None if frames of a newer epoch wait there."""
        ring = frame.ring
        lane = self._light.get(ring) or self._heavy.get(ring) or self._behind.get(ring)
        if lane is not None and lane.epoch > frame.epoch:
            return None
        if lane is None or lane.epoch < frame.epoch:
            lane = Lane(frame.epoch)
            if ring in self._behind:
                self._behind[ring] = lane
            else:
                self._heavy.pop(ring, None)
                self._light[ring] = lane
        return lane

    def _put_in_order(self, lane: Lane, frame: Ordered) -> None:
        if lane.bodies and not isinstance(frame, Submit):
            self._drop_stable(lane, frame)
        match frame:
            case MarksFrame():
                lane.marks = frame
                return
            case OpFrame():
                if lane.marks is not None and len(frame.marks) >= len(lane.marks.marks):
                    lane.marks = None
                if frame.number <= lane.last_number:
                    self._drop_from(lane, frame.number)
                lane.last_number = frame.number
        if lane.marks is not None:
            lane.frames.append(lane.marks)
            lane.marks = None
        lane.frames.append(frame)
        if isinstance(frame, BODIES):
            lane.bodies += 1
            lane.body_bytes += len(frame.payload)
            if frame.ring in self._light:
                self._heavy[frame.ring] = self._light.pop(frame.ring)

    def _drop_stable(self, lane: Lane, newer: OpFrame | MarksFrame | Hello) -> None:
        """Drops the ops that wait although they are stable, as `newer` says."""
        others: list[Ordered] = []
        while lane.frames:
            frame = lane.frames[0]
            if isinstance(frame, OpFrame):
                if frame.number > newer.stable:
                    break
                lane.bodies -= 1
                lane.body_bytes -= len(frame.payload)
            else:
                others.append(frame)
            lane.frames.popleft()
        lane.frames.extendleft(reversed(others))
        if not lane.bodies and newer.ring in self._heavy:
            self._light[newer.ring] = self._heavy.pop(newer.ring)

    def _drop_from(self, lane: Lane, number: int) -> None:
        """The core sends ops again, from `number` on: those that wait are dropped."""
        lane.frames = deque(
            frame
            for frame in lane.frames
            if not (isinstance(frame, OpFrame) and frame.number >= number)
        )
        waiting = [frame for frame in lane.frames if isinstance(frame, BODIES)]
        lane.bodies = len(waiting)
        lane.body_bytes = sum(len(frame.payload) for frame in waiting)

    # --- out ---

    def take(self, *, bodies: bool) -> bytes | None:
        """The next message; None if no frame may go. Without `bodies`, only frames go that have no
        body before them."""
        alone = self._alone
        if alone is not None and (bodies or not isinstance(alone, BODIES)):
            pieces = encode(alone)
            if len(pieces[-1]) + len(pieces[0]) <= self._part_bytes:
                self._alone = None
                self._part_has_turn = True
                return frames_message(WHOLE, pieces)
        self._join_lanes()
        pieces = []
        size = self._take_control(pieces)
        if bodies and not (self._parts and self._part_has_turn):
            self._take_bodies(pieces, size)
        if pieces:
            self._part_has_turn = True
            return frames_message(WHOLE, pieces)
        if bodies and self._parts:
            self._part_has_turn = False
            return self._take_part()
        return None

    def _take_control(self, pieces: list[bytes]) -> int:
        """Adds frames that have no body before them, until the message is full; returns its
        size."""
        size = 0
        while self._control and size < self._message_bytes:
            _, frame = self._control.popitem(last=False)
            size += _add(pieces, frame)
        while self._light and size < self._message_bytes:
            _, lane = self._light.popitem(last=False)
            for frame in lane.frames:
                size += _add(pieces, frame)
            if lane.marks is not None:
                size += _add(pieces, lane.marks)
        return size

    def _take_bodies(self, pieces: list[bytes], size: int) -> None:
        """Adds bodies of each ring in turn, until the message is full."""
        passed = 0
        while size < self._message_bytes and passed < len(self._heavy):
            ring, lane = self._heavy.popitem(last=False)
            taken = self._take_turn(ring, lane, pieces)
            size += taken
            # A ring whose next frame is large waits until no other one is in parts.
            passed = 0 if taken else passed + 1
            if ring not in self._behind:
                self._place(ring, lane)

    def _take_turn(self, ring: str, lane: Lane, pieces: list[bytes]) -> int:
        """Adds up to `TURN_BYTES` from this lane; returns the bytes added."""
        taken = 0
        while lane.frames and taken < TURN_BYTES:
            frame = lane.frames[0]
            encoded = encode(frame)
            length = sum(map(len, encoded))
            if length > self._part_bytes:
                if self._parts:
                    break
                self._split(encoded)
                self._behind[ring] = lane
            else:
                pieces += encoded
                taken += length
            lane.frames.popleft()
            if isinstance(frame, BODIES):
                lane.bodies -= 1
                lane.body_bytes -= len(frame.payload)
            if self._behind.get(ring) is lane:
                break
        return taken

    def _split(self, encoded: list[bytes]) -> None:
        whole = b"".join(encoded)
        step = self._part_bytes
        self._parts.extend(whole[at : at + step] for at in range(0, len(whole), step))

    def _take_part(self) -> bytes:
        part = self._parts.popleft()
        if self._parts:
            return frames_message(PART, [part])
        ring, lane = self._behind.popitem()
        self._place(ring, lane)
        return frames_message(LAST_PART, [part])

    def _place(self, ring: str, lane: Lane) -> None:
        """Puts a lane at the end of the line in which its remaining frames belong."""
        if lane.bodies:
            self._heavy[ring] = lane
        elif lane.frames or lane.marks is not None:
            self._light[ring] = lane

    def check(self) -> None:
        """The invariants, for tests."""
        assert self._alone is None or not self._has_lanes
        assert bool(self._parts) == bool(self._behind)
        assert len(self._behind) <= 1
        lanes = [*self._light.items(), *self._heavy.items(), *self._behind.items()]
        assert len({ring for ring, _ in lanes}) == len(lanes)
        for ring, lane in lanes:
            waiting = [frame for frame in lane.frames if isinstance(frame, BODIES)]
            assert lane.bodies == len(waiting)
            assert lane.body_bytes == sum(len(frame.payload) for frame in waiting)
            assert ring in self._behind or bool(waiting) == (ring in self._heavy)
            numbers = [frame.number for frame in waiting if isinstance(frame, OpFrame)]
            assert numbers == sorted(set(numbers))


def _add(pieces: list[bytes], frame: Frame) -> int:
    encoded = encode(frame)
    pieces += encoded
    return sum(map(len, encoded))
