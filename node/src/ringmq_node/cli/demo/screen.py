"""How the demo is shown while it runs: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ringmq_node.cli.demo.course import State

PLAIN_EVERY_S = 1.0
_COLOURS = {"running": "green", "starting": "yellow", "killed": "bold red"}


class PlainView:
    """Events as they come, figures once per second; to stderr."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._shown_at = self._started

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def event(self, text: str) -> None:
        self._print(text)

    def show(self, state: State) -> None:
        now = time.perf_counter()
        if now >= self._shown_at + PLAIN_EVERY_S:
            self._shown_at = now
            self._print(
                f"published {state.tally.published}, confirmed {state.confirmed}, "
                f"consumed {len(state.tally.delivered)} of {state.count}"
            )

    def _print(self, text: str) -> None:
        seconds = time.perf_counter() - self._started
        print(f"{seconds:6.2f} s  {text}", file=sys.stderr, flush=True)


class LiveView:
    """Bars, the nodes' states, and the events above them; to stderr."""

    def __init__(self, console: Console) -> None:
        self._started = time.perf_counter()
        self._live = Live(console=console, refresh_per_second=10)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def event(self, text: str) -> None:
        seconds = time.perf_counter() - self._started
        self._live.console.print(Text(f"{seconds:6.2f} s  {text}"))

    def show(self, state: State) -> None:
        self._live.update(Group(self._bars(state), self._nodes(state)))

    @staticmethod
    def _bars(state: State) -> Table:
        grid = Table.grid(padding=(0, 2))
        for name, done in (
            ("published", state.tally.published),
            ("confirmed", state.confirmed),
            ("consumed", len(state.tally.delivered)),
        ):
            bar = ProgressBar(total=state.count, completed=done, width=50)
            grid.add_row(name, bar, f"{done:,} of {state.count:,}")
        return grid

    @staticmethod
    def _nodes(state: State) -> Text:
        text = Text()
        for node, what in state.nodes.items():
            text.append(f"{node} ")
            text.append(f"{what}   ", style=_COLOURS[what])
        return text


def make_view() -> PlainView | LiveView:
    console = Console(stderr=True)
    return LiveView(console) if console.is_terminal else PlainView()
