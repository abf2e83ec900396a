"""The life of a publisher or a consumer: opened once, closed once, and perhaps failed between.

The keeper runs in a task of its own from `start` to `end`. Nobody awaits that task while it runs,
so its failure would pass unseen: it becomes `reason`, the error that every later call raises, and
`on_failure` tells the calls that wait already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from ringmq.errors import ClosedError, ProtocolError, RingMQError
from ringmq.streams.keeper import Keeper
from ringmq.streams.speaker import Request, Response

#: How long the stream may take to say goodbye.
CLOSE_S = 5.0


class Life(Enum):
    NEW = auto()
    OPENING = auto()
    OPEN = auto()
    #: It can't go on, and has not been closed yet.
    FAILED = auto()
    CLOSING = auto()
    CLOSED = auto()


class Step(Enum):
    START = auto()
    #: A stream is open: the first one, or a later one.
    OPENED = auto()
    FAIL = auto()
    CLOSE = auto()
    #: The keeper's task is over, after CLOSE.
    END = auto()


# All that is allowed. A pair that is missing is a bug: a publisher that is opened twice, say.
NEXT_LIFE: dict[tuple[Life, Step], Life] = {
    (Life.NEW, Step.START): Life.OPENING,
    (Life.OPENING, Step.OPENED): Life.OPEN,
    (Life.OPENING, Step.FAIL): Life.FAILED,
    (Life.OPENING, Step.CLOSE): Life.CLOSING,
    (Life.OPEN, Step.OPENED): Life.OPEN,
    (Life.OPEN, Step.FAIL): Life.FAILED,
    (Life.OPEN, Step.CLOSE): Life.CLOSING,
    (Life.FAILED, Step.FAIL): Life.FAILED,
    (Life.FAILED, Step.CLOSE): Life.CLOSING,
    # The stream may come up, or break, while it is waited for.
    (Life.CLOSING, Step.OPENED): Life.CLOSING,
    (Life.CLOSING, Step.FAIL): Life.CLOSING,
    (Life.CLOSING, Step.END): Life.CLOSED,
}


class Lifetime:
    """`name` is for errors: "publisher of queue 'orders'". `on_failure` gets the reason."""

    def __init__(self, name: str, on_failure: Callable[[RingMQError], None]) -> None:
        self.life = Life.NEW
        #: Whether it takes calls. Kept beside `life`, because each publish asks.
        self.usable = False
        #: Why calls are refused; of no meaning while it is `usable`.
        self.reason: RingMQError = ClosedError(f"the {name} is not open")
        self._name = name
        self._on_failure = on_failure
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The keeper's, from `start` on.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def over(self) -> bool:
        """Whether it was usable, and never will be again."""
        return self.life in (Life.FAILED, Life.CLOSING, Life.CLOSED)

    @property
    def closing(self) -> bool:
        return self.life is Life.CLOSING or self.life is Life.CLOSED

    def start(self, keeper: Keeper[Request, Response], name: str) -> None:
        self._step(Step.START)
        task = asyncio.get_running_loop().create_task(self._run(keeper), name=name)
        self._tasks.add(task)

    async def wait_opened(self, deadline_s: float) -> None:
        """Raises why it can't be opened; TimeoutError if nobody has said so in time."""
        async with asyncio.timeout(deadline_s):
            await asyncio.shield(self._opened)

    def opened(self) -> None:
        self._step(Step.OPENED)
        if not self._opened.done():
            self._opened.set_result(None)

    def not_opened(self, error: RingMQError) -> None:
        """Tells `wait_opened` the reason, if there was no stream yet."""
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # nobody need be waiting

    def fail(self, error: RingMQError) -> None:
        """It can't go on. The first failure is the reason from now on: others follow from it."""
        if self.usable:
            self.reason = error
        self._step(Step.FAIL)
        self.not_opened(error)

    def close(self) -> bool:
        """From now on it takes no calls; False if it was never opened, or is being closed."""
        if self.life is Life.NEW or self.closing:
            return False
        if self.usable:
            self.reason = ClosedError(f"the {self._name} has been closed")
        self._step(Step.CLOSE)
        self.not_opened(self.reason)
        return True

    async def end(self, keeper: Keeper[Request, Response], *, at_once: bool = False) -> None:
        """Waits until the stream has ended, and cancels it if that takes too long, or `at_once`."""
        keeper.stop()
        _, late = await asyncio.wait(self._tasks, timeout=0.0 if at_once else CLOSE_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        self._step(Step.END)

    def _step(self, step: Step) -> None:
        life = NEXT_LIFE.get((self.life, step))
        assert life is not None, f"the {self._name} is {self.life.name} and met {step.name}"
        self.life = life
        self.usable = life is Life.OPENING or life is Life.OPEN

    async def _run(self, keeper: Keeper[Request, Response]) -> None:
        try:
            await keeper.run()
        except asyncio.CancelledError:
            self.fail(ClosedError(f"the {self._name} has been closed"))
            self._on_failure(self.reason)
            raise
        except BaseException as bug:
            error = ProtocolError(f"the {self._name} failed: {bug!r}")
            error.__cause__ = bug
            self.fail(error)
            self._on_failure(error)
