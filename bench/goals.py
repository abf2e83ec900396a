"""Goals of a benchmark: bounds on our figures, and whether a run has kept them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from bench.stats import Spread

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure of ours.

    With `beside` the bound is on the ratio of our figure to that peer's or variant's, taken in
    each round first. A goal that is missed is met all the same if `instead` is.
    """

    figure: str
    beside: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    instead: Goal | None = None

    def is_met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    def text(self) -> str:
        bound = (
            f"at least {self.at_least:g}" if self.at_most is None else f"at most {self.at_most:g}"
        )
        return f"{bound} x {self.beside}" if self.beside else bound


@dataclass(frozen=True, slots=True)
class Verdict(Generic[S]):
    """`value` is the figure or the ratio that the goal bounds, of one point or one case."""

    subject: S
    goal: Goal
    value: Spread

    @property
    def is_met(self) -> bool:
        return self.goal.is_met(self.value.median)
