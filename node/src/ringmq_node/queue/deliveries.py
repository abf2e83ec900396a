"""Ready messages to consumers with room, in turns; and to one that asks for some. Pure."""

from __future__ import annotations

from ringmq_node.queue.consumers import PrefetchUsedError, Subscriptions
from ringmq_node.queue.effects import DeliverMore, DeliverRuns, Effect
from ringmq_node.queue.ready import Ready
from ringmq_node.queue.run import Run

# What one consumer is given at a time, so that several take turns.
TURN_MESSAGES_MAX = 1000
TURN_BYTES_MAX = 512 * 1024
# Runs that are given out at a time: each takes some 25 us. A consumer with a large prefetch, on a
# queue with a hole at every other position, would hold the caller's loop for a second.
PIECE_RUNS_MAX = 200
# And their messages: each run is copied out of its block, a thousand messages in a millisecond.
PIECE_MESSAGES_MAX = 10_000
# And their bytes: streams say that they are full only when they have them (`consumer_held`).
PIECE_BYTES_MAX = 4 * 1024 * 1024


def deliver(ready: Ready, consumers: Subscriptions, visible_below: int) -> list[Effect]:
    """Gives visible messages to consumers that have room: one piece of work. If there is more to
    do, the last effect says so."""
    effects: list[Effect] = []
    given = messages_given = 0
    bytes_before = consumers.unacknowledged_bytes
    while ready.has_visible(visible_below):
        if consumers.has_parked:
            consumers.unpark(ready.front_bytes(visible_below))
        if consumers.sharing.has_untold:
            effects += consumers.sharing.tell(ready.front_bytes(visible_below))
        consumer = consumers.next_turn()
        if consumer is None:
            break
        if (
            given >= PIECE_RUNS_MAX
            or messages_given >= PIECE_MESSAGES_MAX
            or consumers.unacknowledged_bytes - bytes_before >= PIECE_BYTES_MAX
        ):
            effects.append(DeliverMore())
            return effects
        room = consumer.room_bytes
        # Beyond the first message, of which a consumer that has none may exceed its prefetch.
        own_bytes = consumer.prefetch_bytes - consumer.outstanding_bytes
        runs = ready.take(
            visible_below,
            messages_max=min(consumer.room_messages, TURN_MESSAGES_MAX),
            bytes_max=min(own_bytes, own_bytes if room is None else room, TURN_BYTES_MAX),
            first_bytes_max=room,
            runs_max=PIECE_RUNS_MAX,
        )
        if not runs:
            if ready.is_held(visible_below):
                break
            effects += consumers.park(consumer, ready.front_bytes(visible_below))
            continue
        given += len(runs)
        messages_given += sum(run.block.count for run in runs)
        consumers.deliver(consumer, runs)
        effects.append(DeliverRuns(consumer.id, tuple(runs)))
    if consumers.sharing.has_told:
        effects += consumers.untell(empty=not ready.has_visible(visible_below))
    return effects


def pull(
    ready: Ready,
    consumers: Subscriptions,
    consumer: int,
    messages_max: int,
    bytes_max: int,
    visible_below: int,
) -> list[Run]:
    """Gives visible messages to a consumer that has asked for them. Raises `PrefetchUsedError` if
    it has asked for some, and has no room for the first."""
    subscription = consumers.pulling(consumer)
    room = subscription.own_room_bytes
    runs = ready.take(
        visible_below,
        messages_max=min(messages_max, subscription.room_to_pull),
        bytes_max=min(bytes_max, subscription.prefetch_bytes if room is None else room),
        first_bytes_max=room,
        runs_max=PIECE_RUNS_MAX,
    )
    if runs:
        consumers.deliver(subscription, runs)
    elif messages_max and ready.has_visible(visible_below) and not ready.is_held(visible_below):
        raise PrefetchUsedError(len(subscription.outstanding), subscription.outstanding_bytes)
    return runs
