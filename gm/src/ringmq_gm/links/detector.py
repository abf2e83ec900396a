"""Which nodes can be reached, judged by the events of their links. Pure.

Each node with which a link is wanted is in one of three states:

    DIALLING  the link is being opened, for the first time or again; the rings aren't told
    UP        it is open; silence for `ring_timeout_s` (and up to a quarter more) ends that
    DOWN      the rings have been told; dialling goes on until it is UP

From DIALLING to DOWN: the dial failed (the process is gone: its machine refuses at once), or took
longer than `redial_s`; if the connection was given up, longer than half the time-out, or than what
was left of the silence's time. So a broken link alone is no suspicion, and a killed process is
found out as fast as its machine answers. Only a machine that doesn't answer, or a process that only
pretends to live, costs the whole time-out.

A message from the node on either of the two streams counts as a sign of life. If the stream from
the node breaks, that is no sign of death by itself: our own stream to it breaks too if the node
has died.

A process that was itself stopped for a while, or busy, has heard nothing in that time, from any
node. So it looks `LOOKS` times within the time-out, and of the time between two looks no more
counts as silence than two of these intervals. After a pause however long a node that lived before
has still most of the time-out to be heard. But if all looks are late, a node that is silent is
found out all the same: to begin all silences anew at each late look would never find any. A dial
has no such share: it counts only the time between looks that were not late (and ends by its own
time-out).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringmq_gm.core.chance import Chance

# How often the detector looks within the ring time-out.
LOOKS = 8


class Contact(Enum):
    DIALLING = "dialling"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Up:
    """Tell the rings: a link to this node has been opened, for the first time or again."""

    node: str


@dataclass(frozen=True, slots=True)
class Down:
    """Tell the rings: this node can't be reached."""

    node: str


@dataclass(frozen=True, slots=True)
class Silent:
    """The link to this node is open, but nothing comes: break it off. `Down` follows."""

    node: str


Finding = Up | Down | Silent


@dataclass(slots=True)
class _Watched:
    contact: Contact
    # UP: the moment of its last sign of life. DIALLING: the moment at which dialling began.
    since: float
    # So long after `since` it is DOWN.
    patience_s: float


class Detector:
    """See the module. `now` is any clock that rises, in seconds."""

    def __init__(self, *, ring_timeout_s: float, redial_s: float, chance: Chance) -> None:
        self._ring_timeout_s = ring_timeout_s
        self._redial_s = redial_s
        self._chance = chance
        self._watched: dict[str, _Watched] = {}
        self._interval_s = ring_timeout_s / LOOKS
        # The last `tick`, or when there was a node to be watched again; None while there is none.
        self._looked_at: float | None = None

    def contact(self, node: str) -> Contact | None:
        """None: no link with it is wanted."""
        watched = self._watched.get(node)
        return watched.contact if watched is not None else None

    def down(self) -> list[str]:
        """The nodes that the rings have been told are down."""
        return [node for node, w in self._watched.items() if w.contact is Contact.DOWN]

    # --- events of the links ---

    def wanted(self, node: str, now: float) -> None:
        """A link is wanted from now on, and dialled. The first dial has the whole time-out."""
        if node not in self._watched:
            self._watched[node] = _Watched(Contact.DIALLING, now, self._ring_timeout_s)
            self._begin_to_look(now)

    def unwanted(self, node: str) -> None:
        self._watched.pop(node, None)

    def opened(self, node: str, now: float) -> list[Finding]:
        watched = self._watched.get(node)
        if watched is None:
            return []
        self._begin_to_look(now)
        watched.contact = Contact.UP
        watched.since = now
        watched.patience_s = self._ring_timeout_s * (1 + self._chance.random() / 4)
        return [Up(node)]

    def broke(self, node: str, now: float, *, given_up: bool = False) -> None:
        """The link has broken, and is dialled again. `given_up`: its connection brought nothing for
        half the time-out, which is no sign that the node is gone: the dial has the other half. But
        kernels may take longer than that half, and a node that is silent is down no later for it.
        """
        watched = self._watched.get(node)
        if watched is not None and watched.contact is Contact.UP:
            silence_left_s = watched.since + watched.patience_s - now
            watched.contact = Contact.DIALLING
            watched.since = now
            watched.patience_s = self._redial_s
            if given_up:
                half_s = self._ring_timeout_s / 2
                watched.patience_s = max(self._redial_s, min(half_s, silence_left_s))

    def dial_failed(self, node: str) -> list[Finding]:
        watched = self._watched.get(node)
        if watched is None or watched.contact is not Contact.DIALLING:
            return []
        watched.contact = Contact.DOWN
        return [Down(node)]

    def heard(self, node: str, now: float) -> None:
        """A message has come from the node, on either stream."""
        watched = self._watched.get(node)
        if watched is not None and watched.contact is Contact.UP:
            watched.since = now

    # --- time ---

    def next_deadline(self) -> float | None:
        """When to `tick`. Earlier does no harm; a later sign of life moves it."""
        due = min(
            (w.since + w.patience_s for w in self._watched.values() if w.contact is not _DOWN),
            default=None,
        )
        if due is None:
            self._looked_at = None
            return None
        assert self._looked_at is not None
        return min(due, self._looked_at + self._interval_s)

    def _begin_to_look(self, now: float) -> None:
        if self._looked_at is None:
            self._looked_at = now

    def tick(self, now: float) -> list[Finding]:
        if self._looked_at is None:
            return []
        between_s = now - self._looked_at
        away_s = between_s - 2 * self._interval_s
        self._looked_at = now
        if away_s > 0:
            for watched in self._watched.values():
                not_counted_s = away_s if watched.contact is Contact.UP else between_s
                # It may have been heard since the look before.
                watched.since = min(now, watched.since + not_counted_s)
        findings: list[Finding] = []
        for node, watched in self._watched.items():
            if watched.contact is _DOWN or now < watched.since + watched.patience_s:
                continue
            if watched.contact is Contact.UP:
                findings.append(Silent(node))
            watched.contact = Contact.DOWN
            findings.append(Down(node))
        return findings


_DOWN = Contact.DOWN
