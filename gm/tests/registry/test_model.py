"""Random calls against each engine and against a dict; they have to agree at each step."""

from __future__ import annotations

from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops import run

from ringmq_gm.registry.base import Delete, Guard, KeyValue, Operation, Put, Registry


class Engine(Protocol):
    def open(self) -> Registry: ...


KEYS = ["a", "a/", "a/1", "a/2", "b", "é", "\U0010ffff"]
PREFIXES = ["", "a", "a/", "b", "\U0010ffff", "none"]

keys = st.sampled_from(KEYS)
operations = st.lists(
    st.one_of(
        st.builds(Put, keys, st.binary(max_size=8)),
        st.builds(Delete, keys),
    ),
    unique_by=lambda operation: operation.key,
    max_size=4,
)
# How a guard's revision relates to the true one.
guards = st.lists(st.tuples(keys, st.sampled_from([0, 0, 0, 1, -1])), max_size=3)
steps = st.lists(st.tuples(st.integers(0, 1), guards, operations), min_size=1, max_size=25)


class Model:
    """The registry as a dict."""

    def __init__(self, revision: int) -> None:
        self.entries: dict[str, KeyValue] = {}
        self.revision = revision

    def guard(self, key: str, error: int) -> Guard:
        true = self.entries[key].revision if key in self.entries else 0
        return Guard(key, max(0, true + error))

    def commit(self, wanted: list[Guard], changes: list[Operation]) -> int | None:
        if any(guard != self.guard(guard.key, 0) for guard in wanted):
            return None
        effective = [
            change for change in changes if isinstance(change, Put) or change.key in self.entries
        ]
        self.revision += bool(effective)
        for change in effective:
            if isinstance(change, Put):
                self.entries[change.key] = KeyValue(change.key, change.value, self.revision)
            else:
                del self.entries[change.key]
        return self.revision

    def list(self, prefix: str) -> tuple[KeyValue, ...]:
        return tuple(self.entries[key] for key in sorted(self.entries) if key.startswith(prefix))


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=steps)
def test_engine_agrees_with_a_dict(
    engine: Engine, script: list[tuple[int, list[tuple[str, int]], list[Operation]]]
) -> None:
    async def scenario() -> None:
        registries = [engine.open(), engine.open()]
        # The keys that an earlier example has left.
        await registries[0].commit([], [Delete(key) for key in KEYS])
        model = Model((await registries[0].list("")).revision)
        for which, wanted, changes in script:
            writer, reader = registries[which], registries[1 - which]
            exact = [model.guard(key, error) for key, error in wanted]
            assert await writer.commit(exact, changes) == model.commit(exact, changes)
            for key in KEYS:
                assert await reader.get(key) == model.entries.get(key)
        for prefix in PREFIXES:
            snapshot = await registries[1].list(prefix)
            assert snapshot.entries == model.list(prefix)
            assert snapshot.revision == model.revision
        for registry in registries:
            await registry.close()

    run(scenario())
