"""The command line of benchmarks that take turns: rounds of so many messages, or a short one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_turns(
    parser: argparse.ArgumentParser, *, of: str, rounds: int, count: int, short_count: int
) -> None:
    """`of`: whose turns they are, as the help has it; and the defaults."""
    parser.add_argument("--rounds", type=int, help=f"of {of} (default: {rounds})")
    parser.add_argument("--count", type=int, help=f"messages of a turn (default: {count})")
    parser.add_argument(
        "--short", action="store_true", help=f"one round of {short_count}: whether it works"
    )
    parser.add_argument("--json", action="store_true", help="all runs on stdout, no table")
    parser.set_defaults(defaults={True: (1, short_count), False: (rounds, count)})


def parse_turns(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    parsed = parser.parse_args(arguments)
    rounds, count = parsed.defaults[parsed.short]
    parsed.rounds = rounds if parsed.rounds is None else parsed.rounds
    parsed.count = count if parsed.count is None else parsed.count
    if parsed.rounds < 1 or parsed.count < 1:
        parser.error("--rounds and --count are above 0")
    return parsed
