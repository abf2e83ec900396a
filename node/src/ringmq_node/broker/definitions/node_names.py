"""Which nodes of this cluster those are that definitions name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ringmq_node.broker.definitions.notes import Notes


class NodeNames:
    """`given`: by the name in the document, whole or without the `rabbit@` of RabbitMQ's, what the
    caller has said. `known`: the cluster's nodes; None: any name may be one."""

    def __init__(
        self, given: Mapping[str, str] | None = None, known: Collection[str] | None = None
    ) -> None:
        self._given = given or {}
        self._known = known
        self._named: set[str] = set()

    def here(self, names: Iterable[str]) -> tuple[str, ...]:
        """The nodes here. Several that the caller has made one are one. A name of which nothing is
        known stays whole: hosts may have several nodes."""
        found: list[str] = []
        for name in names:
            bare = name.partition("@")[2] or name
            told = next((each for each in (name, bare) if each in self._given), None)
            if told is None:
                is_here = self._known is None or bare in self._known
                found.append(bare if is_here else name)
                continue
            self._named.add(told)
            if self._given[told] not in found:
                found.append(self._given[told])
        return tuple(found)

    def note_unused(self, notes: Notes) -> None:
        for name in self._given:
            if name not in self._named:
                notes.add(f"node {name!r}", "no policy of the document names it")
