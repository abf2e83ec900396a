"""Descriptions travel between nodes, and to clients, with every field."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from enum import Enum
from itertools import count
from typing import Any

import pytest
from loops import run

from ringmq.v1 import ring_pb2 as ring
from ringmq_base.ranges import RangeSet
from ringmq_node.broker.peers import Promoted
from ringmq_node.doors.grpc import wire
from ringmq_node.model.deaths import DeathReason
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.info import (
    ClusterStatus,
    LeftoverInfo,
    LossInfo,
    MemberInfo,
    NodeCondition,
    NodeInfo,
    NodeResources,
    QueueCondition,
    QueueInfo,
    QueueStorage,
    ReplicaInfo,
    SetAsideEntry,
    StoreNumbers,
    SyncInfo,
    SyncPhase,
)
from ringmq_node.model.records import QueueMode
from ringmq_node.queue.doomed import RUN_BYTES, Doomed
from ringmq_node.queue.leases import QueueLease
from ringmq_node.queue.priorities import Priorities
from ringmq_node.queue.state import EpochStart, ReplicatedState


def filled(kind: type[Any], **given: object) -> Any:
    """A description whose fields all have values of their own, none of them a default."""
    numbers = count(1)
    values: dict[str, object] = {}
    for field in fields(kind):
        number = next(numbers)
        match str(field.type):
            case "int" | "float" | "float | None":
                values[field.name] = number
            case "bool":
                values[field.name] = True
            case "tuple[str, ...]":
                values[field.name] = (f"{field.name}-{number}",)
            case "str":
                values[field.name] = f"{field.name}-{number}"
    return kind(**{**values, **given})


STORAGE = filled(QueueStorage)
RESOURCES = filled(
    NodeResources,
    leftovers=(filled(LeftoverInfo),),
    set_aside=(filled(SetAsideEntry),),
    store=filled(StoreNumbers),
)
SYNC = filled(SyncInfo, phase=SyncPhase.MANUAL)
QUEUE = filled(
    QueueInfo,
    mode=QueueMode.LAZY,
    condition=QueueCondition.MINORITY,
    ring=(
        filled(MemberInfo),
        filled(MemberInfo, node="other", synchronised=False, sync=SYNC),
    ),
    losses=(filled(LossInfo), filled(LossInfo, node="other")),
    wanted={"mirrors": "all"},
    storage=STORAGE,
    flow_reasons=tuple(BlockReason),
)


@pytest.mark.parametrize(
    "info", [QUEUE, replace(QUEUE, storage=None, ring=(), durable=False)], ids=["all", "little"]
)
def test_a_queue_comes_back_from_the_wire_as_it_was(info: QueueInfo) -> None:
    assert wire.queue_from_wire(wire.queue_to_wire(info)) == info


@pytest.mark.parametrize("condition", QueueCondition)
def test_each_condition_of_a_queue_travels(condition: QueueCondition) -> None:
    info = replace(QUEUE, condition=condition)
    assert wire.queue_from_wire(wire.queue_to_wire(info)).condition is condition


@pytest.mark.parametrize("unbounded", [True, False])
def test_limits_that_are_absent_stay_absent(unbounded: bool) -> None:
    storage = replace(STORAGE, messages_target=None) if unbounded else STORAGE
    assert wire.storage_from_wire(wire.storage_to_wire(storage)) == storage
    resources = replace(RESOURCES, desired_duration_s=None) if unbounded else RESOURCES
    assert wire.resources_from_wire(wire.resources_to_wire(resources)) == resources


@pytest.mark.parametrize("loss", [None, filled(LossInfo)])
def test_a_promotion_and_a_replica_come_back_as_they_were(loss: LossInfo | None) -> None:
    promoted = filled(Promoted, loss=loss)
    assert wire.promoted_from_wire(wire.promoted_to_wire(promoted)) == promoted
    replica = filled(ReplicaInfo, mode=QueueMode.LAZY, storage=STORAGE, sync=SYNC)
    assert wire.replica_from_wire(wire.replica_to_wire(replica)) == replica


def is_default(value: object) -> bool:
    return value in (0, "", False, None)


def test_no_field_is_forgotten_on_the_way_to_a_client() -> None:
    node = filled(NodeInfo, condition=NodeCondition.DOWN, resources=RESOURCES)
    messages = [
        wire.status_to_wire(filled(ClusterStatus, nodes=(node,))),
        wire.node_to_wire(node),
        wire.replica_to_wire(filled(ReplicaInfo, mode=QueueMode.LAZY, storage=STORAGE, sync=SYNC)),
        wire.promoted_to_wire(filled(Promoted, loss=filled(LossInfo))),
    ]
    for message in messages:
        for field in message.DESCRIPTOR.fields:
            value = getattr(message, field.name)
            assert not isinstance(value, Enum)
            assert not is_default(value), f"{message.DESCRIPTOR.name}.{field.name}"


def packed(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def holes(ranges: int) -> RangeSet:
    """So many positions, and a hole behind each of them."""
    return RangeSet((at, at) for at in range(0, 2 * ranges, 2))


def test_a_state_travels_whole_and_in_pieces() -> None:
    state = ReplicatedState(
        last_number=9,
        next_position=1_000_000,
        epochs=[EpochStart(3, 1, 0), EpochStart(5, 7, 40)],
        live=holes(50_000),
        redelivered=holes(30_000),
        transient=RangeSet([(6, 6)]),
        producers={b"a": 1, b"": 2},
        producer_times={b"a": 5, b"": 6},
        time_ms=7,
        acked_end=17,
        purged_end=18,
        leases={"l": QueueLease("l", "holder", b"instance", 5, 6, 7)},
    )
    state.producers[b"a"] = 9
    state.gaps.published(b"a", 1, 5, 9)

    async def travelled() -> ReplicatedState:
        data = (await wire.state_to_wire(state)).SerializeToString()
        return await wire.state_from_wire(ring.FetchStateResponse.FromString(data))

    there = run(travelled())
    assert there == state
    there.check()
    assert there.digest() == state.digest()


def test_doomed_runs_and_priorities_travel_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was unpacked in one piece: 100 000 doomed runs took a fifth of a second."""
    count_of_ranges = 2 * wire.STATE_PIECE + 10
    priorities = Priorities()
    priorities.of(3).update(holes(count_of_ranges))
    doomed = Doomed()
    doomed.doom(holes(2 * wire.DOOMED_PIECE + 10), DeathReason.REJECTED)
    state = ReplicatedState(
        last_number=9,
        next_position=2 * count_of_ranges,
        live=holes(count_of_ranges),
        priorities=priorities,
        doomed=doomed,
    )
    runs: list[int] = []
    ranges: list[int] = []
    of_runs, of_ranges = Doomed.extend_packed, RangeSet.extend_packed

    def counted_runs(self: Doomed, data: bytes | memoryview) -> None:
        runs.append(len(data) // RUN_BYTES)
        of_runs(self, data)

    def counted_ranges(self: RangeSet, data: bytes | memoryview) -> None:
        ranges.append(len(data) // wire.RANGE_BYTES)
        of_ranges(self, data)

    async def travelled() -> ReplicatedState:
        response = await wire.state_to_wire(state)
        assert response.doomed == doomed.pack()
        monkeypatch.setattr(Doomed, "extend_packed", counted_runs)
        monkeypatch.setattr(RangeSet, "extend_packed", counted_ranges)
        return await wire.state_from_wire(response)

    there = run(travelled())
    assert there == state
    there.check()
    assert runs == [wire.DOOMED_PIECE, wire.DOOMED_PIECE, 10]
    assert ranges == [wire.STATE_PIECE, wire.STATE_PIECE, 10] * 2
    twin = there.copy()
    assert twin == there
    twin.check()


@pytest.mark.parametrize(
    "data",
    [bytes(8), packed(4, 3), packed(1, 2, 3, 4), packed(5, 6, 1, 2)],
    ids=["half", "backwards", "touch", "order"],
)
def test_positions_that_are_no_ranges_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="packed ranges"):
        run(wire.state_from_wire(ring.FetchStateResponse(live=data)))
