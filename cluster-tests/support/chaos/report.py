"""The verdict of a run as text: what was violated, and how long nobody was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from history.checker import Verdict

from chaos.excuses import REASONS, WITHOUT_SERVICE_S_MAX
from chaos.figures import KindFigures

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
        head = (
            f"{'':{width}}  rounds   without service p50    max  judged"
            "   whole again p50    max  (s)"
        )
        lines = [head, *(_row(each, width) for each in self.kinds)]
        lines.append(
            "judged: the longest part of it in which somebody could have been served; "
            f"{WITHOUT_SERVICE_S_MAX:g} s are allowed, {2 * WITHOUT_SERVICE_S_MAX:g} if two faults "
            "harm one node at a time. Left out is the time while"
        )
        for reason in {REASONS[each.kind]: None for each in self.kinds if each.kind in REASONS}:
            kinds = ", ".join(each.kind for each in self.kinds if REASONS.get(each.kind) == reason)
            lines.append(f"- {reason} ({kinds})")
        return lines

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
    over = "  too long" if each.is_too_long else ""
    return (
        f"{each.kind:{width}}  {each.rounds:6}   {each.without_service_p50_s:19.2f} "
        f"{each.without_service_max_s:6.2f} {each.judged_max_s:7.2f}   "
        f"{each.whole_p50_s:15.2f} {each.whole_max_s:6.2f}{over}"
    )
