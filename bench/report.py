"""The report of a run: a table, the goals, and the JSON with every single measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.goals import Goal, Verdict
from bench.measure import Measurement, Point
from bench.stats import Spread, Value, paired_ratio, select, spread

OURS = "ringmq"
THEIRS = "rabbitmq"
# A pipe has no width of its own: six peers and two ratios fit into this one.
WIDTH_PIPED = 160


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a measurement: its name in JSON, its heading, and how to print it."""

    name: str
    heading: str
    value: Value
    digits: int


COLUMNS = (
    Column("rate_per_s", "messages/s", lambda each: each.client.rate_per_s, 0),
    Column("p50_ms", "p50 ms", lambda each: each.client.p50_ms, 2),
    Column("p99_ms", "p99 ms", lambda each: each.client.p99_ms, 2),
    Column("max_ms", "max ms", lambda each: each.client.max_ms, 1),
    Column(
        "broker_cpu_s_per_million",
        "broker CPU s/million",
        lambda each: each.broker_cpu_s_per_million,
        1,
    ),
    Column(
        "client_cpu_s_per_million",
        "client CPU s/million",
        lambda each: each.client_cpu_s_per_million,
        1,
    ),
    Column("written", "written/body byte", lambda each: each.written_per_body_byte, 2),
)
# Of the rows with a consumer.
CONSUMED = Column("consumed_per_s", "consumed/s", lambda each: each.client.consumed_per_s or 0, 0)
# Of peers that count it.
HANDED = Column(
    "handed", "handed to write/body byte", lambda each: each.handed_per_body_byte or 0, 2
)
# Figures that goals bound, and that no table has.
_JUDGED = (
    Column("tail", "p99 / p50", lambda each: each.client.p99_ms / each.client.p50_ms, 2),
    Column(
        "cpu_s_per_million",
        "CPU s/million of brokers and client",
        lambda each: each.broker_cpu_s_per_million + each.client_cpu_s_per_million,
        1,
    ),
    Column(
        "each_way_per_s",
        "messages/s each way",
        lambda each: min(each.client.rate_per_s, each.client.consumed_per_s or 0),
        0,
    ),
)
_BY_NAME = {column.name: column for column in (*COLUMNS, CONSUMED, HANDED, *_JUDGED)}
QUORUM = "rabbitmq-quorum"
RAW = "raw-ring"

# Of each row: two copies of a body, with a tenth for headers.
_HANDED_GOAL = Goal("handed", at_most=2.2)
# Of messages of 1 KiB without a consumer, by (queues, window).
_GOALS = {
    (1, 1): (
        Goal("p50_ms", beside=THEIRS, at_most=0.8),
        Goal("p50_ms", beside=QUORUM, at_most=1.0),
        Goal("cpu_s_per_million", at_most=900),
    ),
    (1, 10): (Goal("rate_per_s", beside=THEIRS, at_least=3.0),),
    (1, 100): (
        Goal(
            "rate_per_s",
            at_least=40_000,
            instead=Goal("rate_per_s", beside=QUORUM, at_least=2.5),
        ),
    ),
    (1, 1000): (
        Goal(
            "rate_per_s",
            at_least=100_000,
            instead=Goal("rate_per_s", beside=THEIRS, at_least=15.0),
        ),
        Goal("tail", at_most=3.0),
        Goal("broker_cpu_s_per_million", at_most=20),
        Goal("broker_cpu_s_per_million", beside=THEIRS, at_most=0.25),
        Goal("written", at_most=2.2),
    ),
    (10, 1): (Goal("rate_per_s", beside=THEIRS, at_least=3.0),),
    (100, 1): (
        Goal("rate_per_s", beside=THEIRS, at_least=6.0),
        Goal("broker_cpu_s_per_million", at_most=150),
    ),
    (100, 10): (Goal("rate_per_s", beside=THEIRS, at_least=8.0),),
}


def goals_for(point: Point) -> tuple[Goal, ...]:
    """Latency where one message is alone, rates, and CPU and the tail where the window is open."""
    if point.consumed:
        return (Goal("each_way_per_s", at_least=80_000), _HANDED_GOAL)
    if point.size_bytes > 1024:
        return (Goal("rate_per_s", beside=RAW, at_least=0.8), _HANDED_GOAL)
    goals = _GOALS.get((point.queues, point.window), ())
    return (*goals, _HANDED_GOAL) if goals else ()


def verdicts(measurements: Sequence[Measurement], points: Sequence[Point]) -> list[Verdict[Point]]:
    """One for each goal, or none if either side wasn't part of the run."""
    found = []
    for point in points:
        for goal in goals_for(point):
            verdict = _verdict(measurements, point, goal)
            if goal.instead is not None and not (verdict is not None and verdict.is_met):
                other = _verdict(measurements, point, goal.instead)
                verdict = other if verdict is None or (other and other.is_met) else verdict
            if verdict is not None:
                found.append(verdict)
    return found


def _verdict(
    measurements: Sequence[Measurement], point: Point, goal: Goal
) -> Verdict[Point] | None:
    column = _BY_NAME[goal.figure]
    ours = _runs(measurements, OURS, point, column)
    if goal.beside is None:
        return Verdict(point, goal, spread([*map(column.value, ours)])) if ours else None
    theirs = _runs(measurements, goal.beside, point, column)
    if not ours or not theirs:
        return None
    return Verdict(point, goal, paired_ratio(ours, theirs, column.value))


def _runs(
    measurements: Sequence[Measurement], peer: str, point: Point, column: Column
) -> list[Measurement]:
    """Those that have the figure."""
    runs = select(measurements, peer, point)
    if column is HANDED:
        return [each for each in runs if each.handed_bytes is not None]
    return runs


def _summary(
    measurements: Sequence[Measurement], peer: str, point: Point, column: Column
) -> dict[str, float] | None:
    runs = _runs(measurements, peer, point, column)
    return asdict(spread([*map(column.value, runs)])) if runs else None


def beside_raw(measurements: Sequence[Measurement], verdict: Verdict[Point]) -> str:
    """Of a missed goal: our figure, and that of a ring without a broker. Empty if none has it."""
    column = _BY_NAME[verdict.goal.figure]
    ours, raw = (_runs(measurements, peer, verdict.subject, column) for peer in (OURS, RAW))
    if verdict.is_met or not raw:
        return ""
    medians = [spread([*map(column.value, runs)]).median for runs in (ours, raw)]
    return "; ours {0:.{2}f}, the raw ring's {1:.{2}f}".format(*medians, column.digits)


def peers_of(measurements: Sequence[Measurement]) -> list[str]:
    """The peers in the order in which they first ran."""
    return list(dict.fromkeys(each.peer for each in measurements))


def peers_at(measurements: Sequence[Measurement], point: Point) -> list[str]:
    """Those that have answered this question."""
    return peers_of([each for each in measurements if each.point == point])


def print_report(
    console: Console, measurements: Sequence[Measurement], points: Sequence[Point]
) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    for point in points:
        console.print(_table(measurements, point))
    if len(points) > 1:
        console.print(_overview(measurements, points))
    for verdict in verdicts(measurements, points):
        colour, word = ("green", "met") if verdict.is_met else ("red", "missed")
        heading = _BY_NAME[verdict.goal.figure].heading
        console.print(
            f"[{colour}]{word:7}[/] {verdict.subject.label()}: {heading} {verdict.goal.text()}, "
            f"is {inline(verdict.value, 2)}{beside_raw(measurements, verdict)}"
        )
    noise = spread([each.others_cores for each in measurements])
    console.print(
        "Medians of the rounds, with the least and the most under them; ratios are taken in each "
        f"round first. Meanwhile others on this machine took {inline(noise, 2)} cores."
    )


def _table(measurements: Sequence[Measurement], point: Point) -> Table:
    """A row for each figure, a column for each peer, and the ratios to RabbitMQ's queues."""
    title = f"{point.label()}, {point.count} messages"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    runs = {peer: select(measurements, peer, point) for peer in peers_at(measurements, point)}
    rivals = [peer for peer in runs if peer.startswith(THEIRS) and OURS in runs]
    for peer in runs:
        table.add_column(peer, justify="right", no_wrap=True)
    for peer in rivals:
        table.add_column(f"{OURS} /\n{peer}", justify="right", style="bold", no_wrap=True)
    for column in (*COLUMNS, CONSUMED) if point.consumed else COLUMNS:
        cells = [cell(spread(list(map(column.value, of))), column.digits) for of in runs.values()]
        ratios = [cell(paired_ratio(runs[OURS], runs[peer], column.value), 2) for peer in rivals]
        table.add_row(column.heading, *cells, *ratios)
    counted = {peer: _runs(measurements, peer, point, HANDED) for peer in runs}
    if any(counted.values()):
        cells = [
            cell(spread([*map(HANDED.value, of)]), HANDED.digits) if of else "-"
            for of in counted.values()
        ]
        table.add_row(HANDED.heading, *cells, *("-" for _ in rivals))
    return table


def _overview(measurements: Sequence[Measurement], points: Sequence[Point]) -> Table:
    """A row for each point, and for each peer the medians of its rate and of its p50."""
    title = "all rows: messages/s, and p50 in ms under it"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    peers = peers_of(measurements)
    for peer in peers:
        table.add_column(peer, justify="right", no_wrap=True)
    shown = (_BY_NAME["rate_per_s"], _BY_NAME["p50_ms"])
    for point in points:
        cells = []
        for peer in peers:
            runs = select(measurements, peer, point)
            medians = [
                f"{spread(list(map(column.value, runs))).median:.{column.digits}f}"
                for column in shown
                if runs
            ]
            cells.append("\n".join(medians) or "-")
        table.add_row(point.label(), *cells)
    return table


def _numbers(value: Spread, digits: int) -> tuple[str, str]:
    middle, least, most = (
        f"{number:.{digits}f}" for number in (value.median, value.least, value.most)
    )
    return middle, f"{least} - {most}"


def cell(value: Spread, digits: int) -> str:
    return "\n".join(_numbers(value, digits))


def inline(value: Spread, digits: int) -> str:
    middle, between = _numbers(value, digits)
    return f"{middle} ({between})"


def to_json(
    name: str,
    facts: dict[str, Any],
    measurements: Sequence[Measurement],
    points: Sequence[Point],
) -> dict[str, Any]:
    """The result file: `facts` of the run, the summary, the goals, each measurement."""
    return {
        "name": name,
        **facts,
        "points": [asdict(point) for point in points],
        "summary": [
            {
                "peer": peer,
                "point": asdict(point),
                **{
                    column.name: _summary(measurements, peer, point, column)
                    for column in (*COLUMNS, CONSUMED, HANDED)
                },
            }
            for point in points
            for peer in peers_at(measurements, point)
        ],
        "goals": [
            {
                "point": asdict(verdict.subject),
                "column": verdict.goal.figure,
                "beside": verdict.goal.beside,
                "value": asdict(verdict.value),
                "wanted": verdict.goal.text(),
                "met": verdict.is_met,
                "raw_ring": _summary(
                    measurements, RAW, verdict.subject, _BY_NAME[verdict.goal.figure]
                ),
            }
            for verdict in verdicts(measurements, points)
        ],
        "measurements": [each.to_json() for each in measurements],
    }
