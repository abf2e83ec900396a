"""The demo on stderr while it runs: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ringmq_node.cli.demo.course import Screen
from ringmq_node.cli.demo.state import DemoState, NodePhase

PLAIN_EVERY_S = 1.0
_COLOURS = {
    NodePhase.RUNNING: "green",
    NodePhase.STARTING: "yellow",
    NodePhase.KILLED: "bold red",
}


class PlainScreen:
    """Prints events as they come, and figures once per second."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._shown_at = self._started

    def event(self, text: str) -> None:
        self._print(text)

    def show(self, state: DemoState) -> None:
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


class LiveScreen:
    """Bars and the nodes' phases, with the events above them."""

    def __init__(self, live: Live) -> None:
        self._started = time.perf_counter()
        self._live = live

    def event(self, text: str) -> None:
        seconds = time.perf_counter() - self._started
        self._live.console.print(Text(f"{seconds:6.2f} s  {text}"))

    def show(self, state: DemoState) -> None:
        self._live.update(Group(self._bars(state), self._nodes(state)))

    @staticmethod
    def _bars(state: DemoState) -> Table:
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
    def _nodes(state: DemoState) -> Text:
        text = Text()
        for node, phase in state.nodes.items():
            text.append(f"{node} ")
            text.append(f"{phase.value}   ", style=_COLOURS[phase])
        return text


@contextmanager
def screen_on_stderr() -> Iterator[Screen]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainScreen()
        return
    with Live(console=console, refresh_per_second=10) as live:
        yield LiveScreen(live)
