"""References to bodies in the persistent message store that a queue is about to give back.

A message that dies doesn't release its body at once. Until its remove is durable a power cut may
take it back, and the message would come back to find its body deleted. So the reference waits for
the round that makes the remove durable.
"""

from __future__ import annotations

from collections import Counter

from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.queue.parts import SharedParts


class Releases:
    """Of one queue. On the event loop's thread."""

    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared
        self._waiting: list[RecordLocation] = []

    def wait(self, place: RecordLocation) -> None:
        """An entry that refers to `place` has died."""
        self._waiting.append(place)

    def take(self) -> list[RecordLocation]:
        """The bodies to release once all that was appended so far is durable."""
        taken, self._waiting = self._waiting, []
        return taken

    def wait_again(self, places: list[RecordLocation]) -> None:
        """What was taken for a round will not be in one."""
        self._waiting = places + self._waiting

    def release(self, places: list[RecordLocation]) -> None:
        """The removes that made these bodies superfluous are durable."""
        if places:
            store = self._shared.messages(transient=False)
            for place in places:
                store.release(place)

    def release_elided(self, places: list[RecordLocation]) -> None:
        """Releases bodies at once: their publishes were elided, so no record on the disk refers to
        them, nor will one."""
        # They wait here as well, as their messages have died. Each must be released once: a second
        # release would take away the reference of another queue.
        at_once = Counter(places)
        later: list[RecordLocation] = []
        for place in self._waiting:
            if at_once[place] > 0:
                at_once[place] -= 1
            else:
                later.append(place)
        self._waiting = later
        self.release(places)
