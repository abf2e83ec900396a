"""The frames that wait to be sent to one node: frames in, messages out. Pure.

Which frame may overtake which follows from the meaning of each to the receiving member:

* Hello, OpFrame, MarksFrame and Submit of one ring keep their order. Marks may not overtake ops of
  their ring: 1. op 10 waits with marks "A has 9", 2. "A has 10" overtakes it, 3. the receiver
  takes both as they come, believes "A has 9", and passes that on; A has nothing more to say, and
  op 10 is never confirmed.
* Ping, Pong, Gone, Resume and the frames about views go at any time: each holds by itself. Of
  each kind and ring only the newest waits.
* Rings don't wait for each other. Frames without a body before them in their ring go first, then
  small bodies, then the large ones, from each ring in turn.

Overtaken frames are left out. So a ring never has more bytes waiting here than in its cache, and
shares the payloads with it:

* A newer MarksFrame, or an op with marks, replaces a MarksFrame that still waits.
* A frame of a newer epoch replaces all frames of its ring (they would be refused).
* An op replaces those with its number and above: the core sends again from there.
* Ops that a newer frame says are stable are left out. They wait here only for a joiner that was
  left behind, which fetches them: the core doesn't keep them any more either.

A message has about `message_bytes`: only frames without a body may make it larger, by one of them.
While only large bodies wait, the caller may take larger ones (`more_bytes`). A frame that is larger
travels in parts, one frame at a time; messages of the other rings go in between, turn and turn
about. Its own ring waits behind it.

A frame without a body before it in its ring, or with small ones only, is passed by one message of
large bodies at most. Large bodies have such a message after one without any body, and after
`SMALL_BYTES_TURN` of small bodies: they would starve otherwise. The owner bounds how much has left
the outbox already (outgoing.py).

A few frames wait without lanes: a frame alone, or marks and small ops of as many rings, which all
go with the next message. A link sends what a turn of the loop has given it before the next turn
comes, and seldom needs more than that. The order is the same.

Invariants (`check`): while a few frames wait there are no lanes; a ring has one lane, which is
light (no body waits in it), small or heavy (one does), or behind the frame that is on its way in
parts; op numbers rise within a lane; sizes are the sums over the waiting frames.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice

from ringmq_gm.core.frames import (
    Frame,
    Hello,
    MarksFrame,
    OpFrame,
    Submit,
    encode,
)
from ringmq_gm.links.window import LinkWindow
from ringmq_gm.links.wire import LAST_PART, PART, WHOLE, frames_message

# A ring whose first waiting body has at most this is served before the rings with large ones. What
# waits in it beyond `_SMALL_TURN_BYTES` gets in line with the large ones.
SMALL_BYTES_MAX = 4 * 1024
# Such a body with its marks.
_SMALL_TURN_BYTES = 2 * SMALL_BYTES_MAX
# About what a frame takes beside its body. Only a guess: names of rings may be longer.
_FRAME_BYTES = 200
# After so many bytes of small bodies one message of large ones goes.
SMALL_BYTES_TURN = 64 * 1024

# Each body of a ring in line with the large ones has more than `SMALL_BYTES_MAX`, nearly always: so
# many rings have more than a message.
_LARGE_RINGS_LOOKED_AT = 8
NOTHING = memoryview(b"")

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

    def __init__(self, *, message_bytes: int) -> None:
        self._message_bytes = message_bytes
        # Of the message that is being taken.
        self._room_bytes = message_bytes
        # OrderedDict: a plain dict takes long to find its first item once many were removed.
        self._control: OrderedDict[tuple[str, type], Frame] = OrderedDict()
        self._light: OrderedDict[str, Lane] = OrderedDict()
        # In the order of their turns.
        self._small: OrderedDict[str, Lane] = OrderedDict()
        self._heavy: OrderedDict[str, Lane] = OrderedDict()
        # What is still to be sent of the frame that travels in parts; its head before the rest.
        self._rest_head = b""
        self._rest = NOTHING
        # The one ring whose frame that is.
        self._behind: dict[str, Lane] = {}
        self._part_has_turn = False
        # Of small bodies, since large ones had a message.
        self._small_bytes = 0
        # The next message is one of large bodies, if any wait.
        self._large_is_due = False
        # By ring; with these all of the above is empty. More may join them up to `message_bytes`.
        self._few: dict[str, Frame] = {}
        self._few_bytes = 0
        self._few_bodies = 0

    def __bool__(self) -> bool:
        return bool(self._few) or self._has_lanes

    @property
    def _has_lanes(self) -> bool:
        return bool(self._control or self._light or self._small or self._heavy or self._rest)

    @property
    def has_bodies(self) -> bool:
        return bool(self._few_bodies or self._small or self._heavy or self._rest)

    @property
    def is_large(self) -> bool:
        """Only large bodies wait, and they are more than one message has: it may be larger."""
        if self._few:
            # A large body is the only one of these.
            first = next(iter(self._few.values()))
            return isinstance(first, BODIES) and len(first.payload) > self._message_bytes
        if self._control or self._light or self._small:
            return False
        lanes = islice(self._heavy.values(), _LARGE_RINGS_LOOKED_AT)
        waiting = len(self._rest) + sum(lane.body_bytes for lane in lanes)
        return waiting > self._message_bytes

    def waiting_bytes(self, ring: str) -> int:
        """The payloads of this ring's ops and submits that wait."""
        self._join_lanes()
        lane = self._lane_of(ring)
        return lane.body_bytes if lane is not None else 0

    # --- in ---

    def put(self, frame: Frame) -> None:
        few = self._few
        if few:
            size = self._few_bytes + self._size_among_few(frame)
            is_one_of_few = size <= self._message_bytes and frame.ring not in few
        else:
            size = self._size_among_few(frame)
            is_one_of_few = not self._has_lanes
        if not is_one_of_few:
            self._join_lanes()
            self._put(frame)
            return
        few[frame.ring] = frame
        self._few_bytes = size
        if isinstance(frame, BODIES):
            self._few_bodies += 1

    def _size_among_few(self, frame: Frame) -> int:
        """About its size; as much as there is room for if it has to wait alone."""
        if isinstance(frame, OpFrame):
            size = len(frame.payload)
            return size + _FRAME_BYTES if size <= SMALL_BYTES_MAX else self._message_bytes
        return _FRAME_BYTES if isinstance(frame, MarksFrame) else self._message_bytes

    def _join_lanes(self) -> None:
        """The few frames get into their lanes."""
        if self._few:
            few, self._few = self._few, {}
            self._few_bytes = self._few_bodies = 0
            for frame in few.values():
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
        for line in (self._light, self._small, self._heavy):
            line.pop(ring, None)
        if ring in self._behind:
            # If the ring is made again, it begins with a low epoch.
            self._behind[ring] = Lane(0)

    def _lane_of(self, ring: str) -> Lane | None:
        return (
            self._light.get(ring)
            or self._small.get(ring)
            or self._heavy.get(ring)
            or self._behind.get(ring)
        )

    def _lane(self, frame: Ordered) -> Lane | None:
        """The lane for this frame; None if frames of a newer epoch wait there."""
        ring = frame.ring
        lane = self._lane_of(ring)
        if lane is not None and lane.epoch > frame.epoch:
            return None
        if lane is None or lane.epoch < frame.epoch:
            lane = Lane(frame.epoch)
            if ring in self._behind:
                self._behind[ring] = lane
            else:
                self._small.pop(ring, None)
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
                line = self._small if len(frame.payload) <= SMALL_BYTES_MAX else self._heavy
                line[frame.ring] = self._light.pop(frame.ring)

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
        if not lane.bodies and newer.ring not in self._behind:
            for line in (self._small, self._heavy):
                line.pop(newer.ring, None)
            self._light[newer.ring] = lane

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

    def take(
        self, *, bodies: bool, more_bytes: int = 0, window: LinkWindow | None = None
    ) -> bytes | None:
        """The next message; None if no frame may go. Without `bodies`, only frames go that have no
        body before them, and small bodies that `window` has a reserve for. `more_bytes`: so much
        larger may the message be; 0 unless `is_large`."""
        self._room_bytes = self._message_bytes + more_bytes
        if self._few and (bodies or not self._few_bodies):
            pieces = self._encoded_few()
            if sum(map(len, pieces)) <= self._room_bytes:
                self._few.clear()
                self._few_bytes = self._few_bodies = 0
                return frames_message(WHOLE, pieces)
        self._join_lanes()
        if bodies and self._large_is_due:
            data = self._take_large()
            if data is not None:
                return data
        pieces = []
        size = self._take_control(pieces)
        if bodies:
            small = self._take_small(pieces, size)
            self._small_bytes += small
            if not (self._rest and self._part_has_turn) and self._take_heavy(pieces, size + small):
                self._small_bytes = 0
            else:
                # Else large bodies would wait for as long as there is always something that passes.
                self._large_is_due = not small or self._small_bytes >= SMALL_BYTES_TURN
        elif window is not None:
            self._take_reserved(pieces, size, window)
        if pieces:
            return frames_message(WHOLE, pieces)
        return self._take_large() if bodies else None

    def _encoded_few(self) -> list[bytes]:
        pieces: list[bytes] = []
        behind: list[bytes] = []
        for frame in self._few.values():
            if isinstance(frame, BODIES):
                behind += encode(frame)
            else:
                pieces += encode(frame)
        return pieces + behind if behind else pieces

    def _take_large(self) -> bytes | None:
        """A message with large bodies only; None if none waits."""
        self._large_is_due = False
        self._small_bytes = 0
        pieces: list[bytes] = []
        if not (self._rest and self._part_has_turn) and self._take_heavy(pieces, 0):
            return frames_message(WHOLE, pieces)
        if self._rest:
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

    def _take_small(self, pieces: list[bytes], size: int) -> int:
        """Adds small bodies, until the message is full; returns the bytes added."""
        before = size
        while self._small and size < self._message_bytes:
            ring, lane = self._small.popitem(last=False)
            room = self._message_bytes - size
            taken = self._take_turn(lane, pieces, min(room, _SMALL_TURN_BYTES))
            size += taken
            if not taken and size > before:
                # It is the first one of the next message.
                self._small[ring] = lane
                self._small.move_to_end(ring, last=False)
                break
            self._place(ring, lane)
        return size - before

    def _take_reserved(self, pieces: list[bytes], size: int, window: LinkWindow) -> None:
        """Adds small bodies of rings that have room in the reserve, until the message is full."""
        for ring in [*self._small]:
            if size >= self._message_bytes or not window.has_reserve:
                break
            lane = self._small[ring]
            room = min(window.room_of(ring), self._message_bytes - size)
            taken = self._take_turn(lane, pieces, room)
            if taken:
                window.lend(ring, taken)
                size += taken
                del self._small[ring]
                self._place(ring, lane)

    def _take_heavy(self, pieces: list[bytes], size: int) -> int:
        """Adds large bodies of each ring in turn, until the message is full; returns the bytes
        added. A frame that is larger than a message begins to travel in parts, if no other one
        does."""
        before = size
        passed = 0
        while size < self._room_bytes and passed < len(self._heavy):
            ring, lane = self._heavy.popitem(last=False)
            taken = self._take_turn(lane, pieces, self._room_bytes - size)
            size += taken
            if not taken and not self._rest and self._split(lane):
                self._behind[ring] = lane
                continue
            passed = 0 if taken else passed + 1
            self._place(ring, lane)
        self._part_has_turn = True
        return size - before

    def _take_turn(self, lane: Lane, pieces: list[bytes], bytes_max: int) -> int:
        """Adds the first frames of this lane, as far as they fit; returns the bytes added."""
        taken = 0
        while lane.frames:
            encoded = encode(lane.frames[0])
            length = sum(map(len, encoded))
            if taken + length > bytes_max:
                break
            pieces += encoded
            taken += length
            self._drop_first(lane)
        return taken

    def _drop_first(self, lane: Lane) -> None:
        frame = lane.frames.popleft()
        if isinstance(frame, BODIES):
            lane.bodies -= 1
            lane.body_bytes -= len(frame.payload)

    def _split(self, lane: Lane) -> bool:
        """The lane's first frame is to travel in parts; returns False if it fits into a message."""
        pieces = encode(lane.frames[0])
        if sum(map(len, pieces)) <= self._room_bytes:
            return False
        head, body = pieces[0], pieces[1] if len(pieces) > 1 else b""
        if body and len(head) < self._message_bytes:
            # The body isn't copied before it is in a message.
            self._rest_head, self._rest = head, memoryview(body)
        else:
            self._rest = memoryview(head + body)
        self._drop_first(lane)
        return True

    def _take_part(self) -> bytes:
        head, self._rest_head = self._rest_head, b""
        room = self._room_bytes - len(head)
        part, rest = self._rest[:room], self._rest[room:]
        # An empty view would keep the frame.
        self._rest = rest or NOTHING
        if rest:
            return frames_message(PART, [head, part])
        ring, lane = self._behind.popitem()
        self._place(ring, lane)
        return frames_message(LAST_PART, [head, part])

    def _place(self, ring: str, lane: Lane) -> None:
        """Puts a lane at the end of the line in which its remaining frames belong."""
        if lane.bodies:
            self._heavy[ring] = lane
        elif lane.frames or lane.marks is not None:
            self._light[ring] = lane

    def check(self) -> None:
        """The invariants, for tests."""
        assert not self._few or not self._has_lanes
        assert all(frame.ring == ring for ring, frame in self._few.items())
        bodies = [frame for frame in self._few.values() if isinstance(frame, BODIES)]
        assert self._few_bodies == len(bodies)
        assert len(self._few) <= 1 or all(
            isinstance(frame, (OpFrame, MarksFrame)) for frame in self._few.values()
        )
        assert bool(self._rest) == bool(self._behind)
        assert len(self._behind) <= 1
        lanes = [
            *self._light.items(),
            *self._small.items(),
            *self._heavy.items(),
            *self._behind.items(),
        ]
        assert len({ring for ring, _ in lanes}) == len(lanes)
        for ring, lane in lanes:
            waiting = [frame for frame in lane.frames if isinstance(frame, BODIES)]
            assert lane.bodies == len(waiting)
            assert lane.body_bytes == sum(len(frame.payload) for frame in waiting)
            assert ring in self._behind or bool(waiting) == (
                ring in self._small or ring in self._heavy
            )
            numbers = [frame.number for frame in waiting if isinstance(frame, OpFrame)]
            assert numbers == sorted(set(numbers))


def _add(pieces: list[bytes], frame: Frame) -> int:
    encoded = encode(frame)
    pieces += encoded
    return sum(map(len, encoded))
