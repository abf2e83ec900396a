"""How long a ring member waits for others before it goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds."""

    # Waiting for the members of the wanted view to answer.
    probe_s: float = 0.5
    # The longest such time, of a member whose probes weren't answered in time again and again.
    probe_s_max: float = 4.0
    # The mean pause before the next try. Each is 0.5 to 1.5 times this.
    retry_s: float = 0.3
    # The first and the longest mean pause of a member that is put out again and again. Longer than
    # a link that comes and goes takes to show it: the pause has to outlast some of its cuts.
    put_out_s_min: float = 4.0
    put_out_s_max: float = 30.0
    # A member that was in the ring for so long begins with a short pause again.
    settled_s: float = 60.0
    # A master that hears too few members waits so long for them to be heard again. It comes after
    # the ring time-out, in which a silent member is found out.
    contact_s: float = 0.25
    # After a whole ring has been restarted: for the others to come up as well.
    restart_grace_s: float = 2.0
    # A promotion that has not drained by then is called off.
    drain_s: float = 5.0
    # A member that has received ops, and has written none of them to its disk for so long, is put
    # out if enough others have. As long as the ring time-out: a disk may be silent for as long as a
    # process.
    disk_stall_s: float = 2.0
    # A joiner whose disk is behind by no more than this is courted: for twice as long at most, ops
    # wait for it that come without a pause (`courting`).
    court_s: float = 0.25
    # A mirror that nobody has greeted in a new view tells its upstream neighbour the view after
    # this: that one may be cut from the registry.
    tell_s: float = 0.1
    # An idle master says `stable` after this.
    stable_delay_s: float = 0.05
