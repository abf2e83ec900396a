"""Two cores and a bad network between them, for as long as you like, at some hundred runs a second.

    python -m wire.tests.fuzz_wire --seconds 600 --seed 1

Each run is a plan: windows, and steps of both applications, of the network and of the clock, all
from one seed. The network carries bytes in pieces of any size; in two of three plans it also flips,
drops, repeats and inserts them, and adds frames of its own. What has to hold is in `Story.check`. A
plan that fails is shortened, and printed with its story and the command that runs it again.
`test_fuzzed` is the same for the suite.

    PYTHONPATH=base/tests/support:wire/tests/support
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass

from node.tests.plans import Failure, fuzz
from wirepair import End, block, goaway_code

from ringmq_wire import frames
from ringmq_wire.budgets import CONTROL_WAITING_MAX
from ringmq_wire.codes import Code, ErrorCode, RpcStatus
from ringmq_wire.errors import CallClosedError, SendQueueFullError
from ringmq_wire.events import CallEnded, CallMessages, CallOpened, ConnectionClosed
from ringmq_wire.options import FRAME_BYTES_MAX, WireOptions
from ringmq_wire.streams import WireStream

KIB = 1024
STEPS = 60
# The name of a method of `Story`, and its arguments.
Step = tuple[str, tuple[object, ...]]
SIZES = [0, 1, 5, 100, 4_096, 4_097, 16_379, 16_384, 40_000, 70_000, 200_000]
FLAGS = [0, 1, 4, 5, 8, 9, 0x20, 0x24, 0x2D, 255]
WAYS = ("to server", "to client")


def random_options(rng: random.Random) -> WireOptions:
    some = rng.choice
    window = some([65_535, 100_000, 1 << 20])
    return WireOptions(
        stream_window_bytes=window,
        connection_window_bytes=some([window, 2 * window, 1 << 22]),
        assembly_bytes_max=some([1, 150_000, 1 << 26]),
        unfinished_bytes_max=some([70_000, 1 << 20]),
        unread_bytes_max=some([100_000, 1 << 27]),
        message_bytes_max=some([50_000, 1 << 20]),
        send_bytes_max=some([100_000, 1 << 26]),
        send_bytes_high=some([1, 50_000]),
        header_block_bytes_max=some([300, 32 * KIB]),
        streams_max=some([2, 100]),
        settings_timeout_s=some([1.0, 1e9, 1e9, 1e9]),
        idle_timeout_s=some([None, None, 5.0]),
        keepalive_s=some([None, 3.0]),
    )


def random_frame(rng: random.Random) -> bytes:
    kind = rng.choice([*range(11), 0x77])
    stream = rng.choice([0, 0, 1, 1, 2, 3, 5, 7, 9, 2**31 - 1, 2**32 - 1])
    payload = rng.choice([b"", bytes(4), bytes(5), bytes(6), bytes(8), b"\0\0\0\1", block()])
    if rng.random() < 0.4:
        payload = rng.randbytes(rng.choice([1, 3, 9, 40, 300]))
    return frames.frame(kind, rng.choice(FLAGS), stream, payload)


def random_step(rng: random.Random, *, bad: bool) -> Step:
    some, which = rng.choice, rng.randint(0, 5)
    sizes = [some(SIZES) for _ in range(some([1, 1, 2, 5]))]
    way = some(WAYS)
    steps: list[tuple[int, Step]] = [
        (12, ("open", (some([None, None, None, 2.0]),))),
        (20, ("send", (which, sizes))),
        (20, ("answer", (which, sizes))),
        (6, ("half_close", (which,))),
        (8, ("finish", (which, some([Code.OK, Code.ABORTED])))),
        (3, ("cancel", (way, which))),
        (12, ("consume", (way, some([1, 10])))),
        (60, ("carry", (way, some([1, 9, 200, 5_000, 100_000, 1 << 22])))),
        (1, ("pass_time", (some([0.1, 1.1, 6.0, 30.0]),))),
        (1, ("shutdown", (way,))),
    ]
    if bad:
        steps += [
            (6, ("flip", (way, rng.random(), rng.randint(0, 255)))),
            (4, ("drop", (way, rng.random(), some([1, 4, 9, 40])))),
            (4, ("repeat", (way, rng.random(), some([1, 9, 13, 200])))),
            (8, ("insert", (way, rng.random() if rng.random() < 0.5 else 1.0, random_frame(rng)))),
            (2, ("insert", (way, rng.random(), rng.randbytes(some([1, 9, 60]))))),
            (1, ("insert", (way, 1.0, random_frame(rng) * some([50, 6_000])))),
        ]
    return rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]


@dataclass(frozen=True)
class Plan:
    client: WireOptions
    server: WireOptions
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int, steps: int) -> Plan:
        rng = random.Random(seed)
        bad = rng.random() < 2 / 3
        return cls(
            random_options(rng),
            random_options(rng),
            tuple(random_step(rng, bad=bad) for _ in range(steps)),
        )


class Story:
    """Both ends, what is on its way between them, and what each application has sent."""

    def __init__(self, plan: Plan, events: Counter[str]) -> None:
        self.client = End(client=True, options=plan.client)
        self.server = End(client=False, options=plan.server)
        self._options = {"to server": plan.server, "to client": plan.client}
        for end in (self.client, self.server):
            end.consumes = False
        self._under_way = {way: bytearray() for way in WAYS}
        # Bytes were changed: then nothing is promised but what `check` wants of any input.
        self._bad = False
        self._now = 0.0
        self._opened: list[WireStream] = []
        self._sent: dict[tuple[str, int], list[bytes]] = {}
        self._unconsumed: dict[str, list[CallMessages]] = {way: [] for way in WAYS}
        self._seen = dict.fromkeys(WAYS, 0)
        self._got: dict[tuple[str, int], list[bytes]] = {}
        self._served: list[WireStream] = []
        self._numbers = 0
        self._events = events

    def receiver(self, way: str) -> End:
        return self.server if way == "to server" else self.client

    def sender(self, way: str) -> End:
        return self.client if way == "to server" else self.server

    # --- the applications ---

    def open(self, timeout_s: float | None) -> None:
        calls = self.client.core.calls
        if not self.client.core.closed and not calls.draining and calls.can_open:
            self._opened.append(self.client.open(timeout_s))
            self._events["calls"] += 1

    def send(self, which: int, sizes: list[int]) -> None:
        self._put("to server", self._opened, which, sizes)

    def answer(self, which: int, sizes: list[int]) -> None:
        self._put("to client", self._served, which, sizes)

    def _put(self, way: str, streams: list[WireStream], which: int, sizes: list[int]) -> None:
        if not streams:
            return
        stream = streams[-1 - which % len(streams)]
        messages = []
        for size in sizes:
            self._numbers += 1
            messages.append((b"%d " % self._numbers).ljust(size, b".")[:size])
        try:
            self.sender(way).core.calls.send(stream, messages)
        except (CallClosedError, SendQueueFullError) as error:
            self._events[type(error).__name__] += 1
        else:
            self._sent.setdefault((way, stream.id), []).extend(messages)

    def half_close(self, which: int) -> None:
        if self._opened:
            self.client.core.calls.half_close(self._opened[-1 - which % len(self._opened)])

    def finish(self, which: int, code: Code) -> None:
        if self._served:
            stream = self._served[-1 - which % len(self._served)]
            self.server.core.calls.finish(stream, RpcStatus(code, "done"))

    def cancel(self, way: str, which: int) -> None:
        streams = self._opened if way == "to server" else self._served
        if streams:
            stream = streams[-1 - which % len(streams)]
            self.sender(way).core.calls.cancel(stream, self._now)

    def consume(self, way: str, count: int) -> None:
        waiting = self._unconsumed[way]
        for event in waiting[:count]:
            self.receiver(way).core.calls.consumed(event.stream, event.size_bytes)
        del waiting[:count]

    # --- the network and the clock ---

    def carry(self, way: str, size: int) -> None:
        sender, receiver, under_way = self.sender(way), self.receiver(way), self._under_way[way]
        under_way += sender.output()
        data = bytes(under_way[:size])
        del under_way[: len(data)]
        was_closed = receiver.core.closed
        told = receiver.receive(data)
        assert not (was_closed and told), "a closed end takes nothing"

    def flip(self, way: str, where: float, value: int) -> None:
        under_way, at = self._place(way, where)
        if at < len(under_way):
            under_way[at] = value
            self._bad = True

    def drop(self, way: str, where: float, length: int) -> None:
        under_way, at = self._place(way, where)
        if at < len(under_way):
            del under_way[at : at + length]
            self._bad = True

    def repeat(self, way: str, where: float, length: int) -> None:
        under_way, at = self._place(way, where)
        if at < len(under_way):
            under_way[at:at] = under_way[at : at + length]
            self._bad = True

    def insert(self, way: str, where: float, data: bytes) -> None:
        under_way, at = self._place(way, where)
        under_way[at:at] = data
        self._bad = True

    def _place(self, way: str, where: float) -> tuple[bytearray, int]:
        under_way = self._under_way[way]
        under_way += self.sender(way).output()
        return under_way, int(where * len(under_way))

    def pass_time(self, seconds: float) -> None:
        self._now += seconds
        for end in (self.client, self.server):
            end.tick(self._now)

    def shutdown(self, way: str) -> None:
        self.sender(way).core.shutdown(self._now)

    # --- what has to hold ---

    def check(self) -> None:
        """Whatever came: no exception, the invariants of both cores, and their bounds. Of traffic
        that nobody has changed, each message comes once, whole and in order; and no fault is
        found in it."""
        for way in WAYS:
            self._look(way)
            end, options = self.receiver(way), self._options[way]
            end.core.check()
            if not end.core.closed:
                self._check_bounds(end, options)
        if not self._bad:
            for key, got in self._got.items():
                assert got == self._sent.get(key, [])[: len(got)], key

    def _look(self, way: str) -> None:
        end = self.receiver(way)
        new, self._seen[way] = end.events[self._seen[way] :], len(end.events)
        for event in new:
            if isinstance(event, CallMessages):
                self._unconsumed[way].append(event)
                self._got.setdefault((way, event.stream.id), []).extend(event.messages)
                self._events["messages"] += len(event.messages)
            elif isinstance(event, CallOpened):
                self._served.append(event.stream)
            elif isinstance(event, CallEnded):
                self._events[f"ended {event.status.code.name}"] += 1
            elif isinstance(event, ConnectionClosed):
                self._check_farewell(way, event)

    def _check_farewell(self, way: str, event: ConnectionClosed) -> None:
        """Who finds a fault tells the other end which, and it was the network's."""
        farewell = self.receiver(way).output(1 << 30)
        self._under_way["to client" if way == "to server" else "to server"] += farewell
        if event.reason != "all calls have ended":
            code = goaway_code(farewell)
            assert code is not None, event
            self._events[code.name] += 1
            timed_out = code in (ErrorCode.SETTINGS_TIMEOUT, ErrorCode.NO_ERROR)
            handshake = code is ErrorCode.PROTOCOL_ERROR and "within" in event.reason
            assert self._bad or timed_out or handshake, event

    def _check_bounds(self, end: End, options: WireOptions) -> None:
        core = end.core
        assert end is self.client or len(core.calls.streams) <= options.streams_max
        streams = core.calls.streams.values()
        kept = sum(stream.reassembly.held_bytes for stream in streams)
        assert kept <= options.unfinished_bytes_max + options.message_bytes_max + 5
        held = sum(stream.held_bytes for stream in streams)
        # Of a message larger than the window the whole is held once it is there.
        assert held <= (
            options.connection_window_bytes
            + options.unread_bytes_max
            + len(core.calls.streams) * (options.message_bytes_max + 5)
        )
        for stream in streams:
            assert stream.queued_bytes <= options.send_bytes_max + sum(SIZES[-1:] * 5) + 5 * 5
        assert len(core.outflow._control) <= CONTROL_WAITING_MAX + 2 * FRAME_BYTES_MAX // 9

    def end(self) -> None:
        """Everything is consumed and carried: what was sent in good order has come."""
        for _ in range(100_000):
            for way in WAYS:
                self.carry(way, 1 << 22)
                self._look(way)
                self.consume(way, 1_000_000)
            ready = self.client.core.outflow.ready or self.server.core.outflow.ready
            if not ready and not any(self._under_way.values()):
                break
        else:
            raise AssertionError("the ends never come to rest")
        self.check()
        if self._bad or self.client.core.closed or self.server.core.closed:
            return
        for end in (self.client, self.server):
            for stream in end.core.calls.streams.values():
                assert not stream.queued_bytes, stream.id
        for way, streams in (("to server", self._opened), ("to client", self._served)):
            for stream in streams:
                if not stream.ended:
                    key = (way, stream.id)
                    assert self._got.get(key, []) == self._sent.get(key, []), key


def run(plan: Plan, events: Counter[str]) -> Failure | None:
    story = Story(plan, events)
    at = 0
    try:
        for at, (name, arguments) in enumerate(plan.steps):  # noqa: B007
            getattr(story, name)(*arguments)
            story.check()
        story.end()
    except Exception as error:
        return Failure.of(error, at)
    return None


def main() -> int:
    return fuzz("Two cores of the wire, and a bad network between them.", Plan.of, run, steps=STEPS)


if __name__ == "__main__":
    sys.exit(main())
