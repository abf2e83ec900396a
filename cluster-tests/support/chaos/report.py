"""The verdict of a run as text: what was violated, and how long nobody was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from faults.rounds import WITHOUT_QUORUM
from history.checker import Verdict

from chaos.figures import KindFigures

# What is aimed at, for every kind that leaves a quorum.
WITHOUT_SERVICE_S_AIM = 3.5
SHOWN_MAX = 12


@dataclass(slots=True)
class Outcome:
    """Everything that is said of a run. `failures` make it a failed one."""

    seed: int
    minutes: float
    verdict: Verdict = field(default_factory=Verdict)
    kinds: Sequence[KindFigures] = ()
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return not self.failures and not self.verdict.violations

    def text(self, again: str) -> str:
        """`again` is the command that plays the same rounds."""
        return "\n".join([*self._figures(), "", *self._verdict(), "", f"again: {again}"])

    def _figures(self) -> list[str]:
        width = max((len(each.kind) for each in self.kinds), default=4)
        head = f"{'':{width}}  rounds   without service p50    max   whole again p50    max  (s)"
        return [head, *(_row(each, width) for each in self.kinds)]

    def _verdict(self) -> list[str]:
        verdict = self.verdict
        lines = [
            f"{verdict.published} published, {verdict.confirmed} confirmed, {verdict.unknown} "
            f"unknown, {verdict.delivered} delivered, {verdict.repeats} of them again, "
            f"{verdict.acked} acks safe, {verdict.views} views, {verdict.drained} queues drained"
        ]
        lines += [f"note: {note}" for note in self.notes[:SHOWN_MAX]]
        if len(self.notes) > SHOWN_MAX:
            lines.append(f"note: and {len(self.notes) - SHOWN_MAX} more")
        lines += [f"FAILED: {failure}" for failure in self.failures]
        lines += [f"VIOLATED: {violation}" for violation in verdict.violations]
        lines.append(
            "all is well: 0 lost, 0 duplicated"
            if self.is_well
            else f"seed {self.seed} is not well: {len(self.failures)} failures, "
            f"{len(verdict.violations)} rules violated"
        )
        return lines


def _row(each: KindFigures, width: int) -> str:
    over = "  above the aim" if _is_over(each) else ""
    return (
        f"{each.kind:{width}}  {each.rounds:6}   {each.without_service_p50_s:19.2f} "
        f"{each.without_service_max_s:6.2f}   {each.whole_p50_s:15.2f} {each.whole_max_s:6.2f}"
        f"{over}"
    )


def _is_over(each: KindFigures) -> bool:
    return each.without_service_max_s > WITHOUT_SERVICE_S_AIM and each.kind not in WITHOUT_QUORUM
