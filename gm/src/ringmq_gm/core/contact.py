"""Whether a master hears enough of its ring to go on as its master. Pure.

A master that is cut off learns from nobody that it has been followed by another: not from the
members, and perhaps not from the registry. It could confirm nothing any more, and would keep its
clients all the same, though these may reach the others. So it looks at two things:

* *Enough to confirm anything*: `min_insync` synchronised members, itself included; or all of them
  if the view has fewer. (Such a view confirms nothing, but no other one is expected either.)
* *Too few without it*: those that it doesn't hear are fewer than `min_insync`. Otherwise they may
  have made a view of their own. With `min_insync` 1, one member is enough for that.

A frame of a later epoch says the same more clearly: the registry has another view.

This is no matter of safety, as a master that was deposed gets no marks to confirm with. What it
guards is time: clients that were sent away look for the master of the majority.
"""

from __future__ import annotations

from ringmq_gm.core.lives import Lives
from ringmq_gm.core.views import View


def has_contact(view: View, lives: Lives) -> bool:
    """Whether the master of `view` may take it that it is still the master."""
    if lives.newest_epoch > view.epoch:
        return False
    if not lives.down:
        return True  # Asked at every step, and this is nearly always so.
    unheard = sum(member.node in lives.down for member in view.synced)
    heard = len(view.synced) - unheard
    if heard < min(view.min_insync, len(view.synced)):
        return False
    return unheard == 0 or unheard < view.min_insync
