"""Makes the trace of a run short enough to be read."""

from __future__ import annotations

import re

_SHORTER = (
    (r"Member\(id=MemberId\(node='(\w+)', incarnation=(\d+)\), synced=True\)", r"\1#\2"),
    (r"Member\(id=MemberId\(node='(\w+)', incarnation=(\d+)\), synced=False\)", r"\1#\2-joining"),
    (r"MemberId\(node='(\w+)', incarnation=(\d+)\)", r"\1#\2"),
    (r"Mark\(received=(\d+), persisted=(\d+), complete=True\)", r"\1/\2"),
    (r"Mark\(received=(\d+), persisted=(\d+), complete=False\)", r"\1/\2-incomplete"),
    (r"Received\(envelope=Envelope\(sender=(\S+), frame=(.*?)\)\) ->", r"from \1 \2 ->"),
    (r"ring='r', |frozenset|<Role\.\w+: |<ProposalOutcome\.\w+: |<PromotionOutcome\.\w+: ", ""),
    (r"'>", "'"),
)


def shortened(line: str) -> str:
    for pattern, replacement in _SHORTER:
        line = re.sub(pattern, replacement, line)
    return line
