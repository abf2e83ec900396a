"""The connect stream: it holds a client's connection at this node."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import HEARTBEATS_MISSED_MAX
from ringmq_node.broker.broker import Broker
from ringmq_node.doors.grpc.service import Context, parse_request
from ringmq_node.model.reasons import bad_request
from ringmq_wire import RpcError

_HEARTBEAT = broker.ConnectResponse(heartbeat=broker.Heartbeat()).SerializeToString()


class ConnectStream:
    """`run` opens the connection, and returns when it is over."""

    def __init__(self, context: Context, door: Broker) -> None:
        self._context = context
        self._door = door
        self._heartbeat_s = door.settings.heartbeat_s

    async def run(self) -> None:
        """Raises `BrokerError` if there can't be another connection, or the client sends anything
        but heartbeats: the connection is lost then."""
        orphans = self._door.orphans
        connection = orphans.open()
        try:
            opened = broker.ConnectOpened(
                connection=connection.id,
                heartbeat_ms=round(self._heartbeat_s * 1000),
                node=self._door.node,
            )
            await self._context.write(broker.ConnectResponse(opened=opened).SerializeToString())
            if await self._hold():
                await orphans.close(connection)
        finally:
            # Does nothing to a connection that was closed.
            orphans.lose(connection)

    async def _hold(self) -> bool:
        """Returns when the client ends the stream: True; or falls silent: False. Raises
        `BrokerError` for anything but a heartbeat."""
        beats = asyncio.create_task(self._beat(), name="connect heartbeat")
        # Counted, and not one long time-out: after a pause of this loop, the client's heartbeats
        # are there, unread.
        missed = 0
        try:
            while missed < HEARTBEATS_MISSED_MAX:
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        data = await self._context.read()
                    if data is None:
                        return True
                    _check_heartbeat(data)
                    missed = 0
                except TimeoutError:
                    missed += 1
            return False
        except RpcError:
            return False
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _beat(self) -> None:
        # A write fails when the call is over, which the reader hears too.
        with suppress(RpcError):
            while True:
                await asyncio.sleep(self._heartbeat_s)
                await self._context.write(_HEARTBEAT)


def _check_heartbeat(data: bytes) -> None:
    request = parse_request(broker.ConnectRequest, data)
    if request.WhichOneof("request") != "heartbeat":
        raise bad_request("after Open come heartbeats", field="request")
