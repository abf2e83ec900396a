"""What is said of connections while their publishers are held, and when it is said no more."""

from __future__ import annotations

from ringmq_node.model.flow import ALARMS, BlockReason
from ringmq_node.model.info import ConnectionCondition, ConnectionInfo
from ringmq_node.resources.connection_states import LINGER_S, ConnectionStates

RING = (BlockReason.RING_FULL,)
DISK = (BlockReason.DISK,)


class Scene:
    def __init__(self) -> None:
        self.now = 10.0
        self.alarms: frozenset[BlockReason] = frozenset()
        self.states = ConnectionStates("a", lambda: self.now, lambda: self.alarms)

    def info(self) -> ConnectionInfo:
        (found,) = self.states.infos("", 9)
        return found

    def state(self) -> tuple[ConnectionCondition, tuple[BlockReason, ...]]:
        return self.info().condition, self.info().flow_reasons


def test_flow_lingers_behind_the_last_stream_that_was_held() -> None:
    scene = Scene()
    with (
        scene.states.stream("p", publishes=True) as one,
        scene.states.stream("p", publishes=True) as other,
    ):
        assert scene.state() == (ConnectionCondition.RUNNING, ())
        one.hold(RING)
        other.hold((BlockReason.UNSYNCED,))
        assert scene.state() == (ConnectionCondition.FLOW, (BlockReason.UNSYNCED, *RING))
        other.release()
        scene.now += 2 * LINGER_S
        assert scene.state() == (ConnectionCondition.FLOW, RING)
        one.release()
        one.release()
        scene.now += 0.9 * LINGER_S
        assert scene.state()[0] is ConnectionCondition.FLOW
        scene.now += 0.2 * LINGER_S
        assert scene.state() == (ConnectionCondition.RUNNING, ())


def test_a_stream_that_ends_is_held_no_more() -> None:
    scene = Scene()
    with scene.states.stream("p", consumes=True):
        with scene.states.stream("p", publishes=True) as stream:
            stream.hold(RING)
        assert scene.state() == (ConnectionCondition.FLOW, RING)
        scene.now += 2 * LINGER_S
        assert scene.state() == (ConnectionCondition.RUNNING, ())


def test_an_alarm_blocks_those_that_publish_and_will_block_the_others() -> None:
    scene = Scene()
    with scene.states.stream("p", consumes=True):
        scene.alarms = ALARMS
        assert scene.state() == (ConnectionCondition.RUNNING, ()), "it publishes nothing"
        with scene.states.stream("p", publishes=True) as stream:
            assert scene.state() == (
                ConnectionCondition.BLOCKING,
                (BlockReason.MEMORY, BlockReason.DISK),
            )
            stream.hold((*RING, *DISK))
            assert scene.state() == (ConnectionCondition.BLOCKED, DISK)
            scene.alarms = frozenset()
            stream.release()
            assert scene.state()[0] is ConnectionCondition.FLOW


def test_a_connection_is_there_while_it_has_streams() -> None:
    scene = Scene()
    with scene.states.stream("p", publishes=True) as stream:
        stream.hold(RING)
        with scene.states.stream("p", consumes=True):
            assert (scene.info().publishers, scene.info().consumers) == (1, 1)
        assert (scene.info().publishers, scene.info().consumers) == (1, 0)
    assert scene.states.infos("", 9) == []
    with scene.states.stream("p"):
        assert scene.state() == (ConnectionCondition.RUNNING, ()), "another one, of the same port"


def test_pages_are_in_order_and_a_relay_is_a_connection_of_its_own() -> None:
    scene = Scene()
    with (
        scene.states.stream("q"),
        scene.states.stream("p", relayed=True),
        scene.states.stream("p"),
    ):
        first = scene.states.infos("", 2)
        assert [(each.peer, each.relayed) for each in first] == [("p", False), ("p", True)]
        (last,) = scene.states.infos("a p relayed", 2)
        assert last.peer == "q"
