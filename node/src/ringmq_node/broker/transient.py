"""When a transient queue is gone.

A transient queue lives in the memory of the nodes that hold it: as long as one synchronised
member of its ring lives, it has everything. A node that is started again brings nothing of it
back, and fetches it from one that lives. If nobody is left who could give it, the queue is
deleted, record and ring, and can be declared anew.

"Nobody is left" must never be said of a ring that merely can't be seen: what is deleted then
are confirmed messages. So it is said only when of every synchronised member of the view a
*later life of its node* has been seen; a node has one life at a time (a later one holds the
lock of its data directory, and an earlier one that hears of it stops). A member that does not
answer, or whose lease has run out, may live: it may be cut off, or the registry was away. The
queue then stays as it is, without a master, until that node is back in its old life, and forms
the next view, or in a new one.

Whoever deletes guards ring and record with the revisions that were judged. A view that a
living member has brought about meanwhile makes the deletion fail, and a deletion that was
first makes the view fail: its proposal is a compare-and-set as well.
"""

from __future__ import annotations

from collections.abc import Callable

from ringmq_gm import View


def is_gone(view: View, incarnation_of: Callable[[str], int]) -> bool:
    """Whether every synchronised member is an earlier life. `incarnation_of(node)`: the highest
    that was seen of a node, 0 if none was."""
    return all(incarnation_of(member.node) > member.incarnation for member in view.synced)
