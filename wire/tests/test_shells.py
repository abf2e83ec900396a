"""Server and channel of this transport, with each other."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections import Counter

import pytest
from loops import LOOPS, LoopFactory, run
from waiting import leeway, until
from wireserver import HOST, ROUTES, connected, serving

from ringmq_wire import (
    CallClosedError,
    CallHandler,
    CallStream,
    Code,
    RpcError,
    RpcStatus,
    WireCall,
    WireChannel,
    WireOptions,
    WireServer,
    frames,
    streaming,
)
from ringmq_wire.backoff import Backoff
from ringmq_wire.channel import ASKED_ANEW_AFTER_S
from ringmq_wire.connection import EVENTS_AT_ONCE, Connection
from ringmq_wire.tcp import TCP_CORK, UNSENT_BYTES_MAX
from ringmq_wire.transport import WireProtocol

MIB = 1024 * 1024


class Collecting(CallHandler):
    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.status: RpcStatus | None = None

    def received(self, messages: list[bytes]) -> None:
        self.batches.append(messages)

    def ended(self, status: RpcStatus) -> None:
        self.status = status

    @property
    def messages(self) -> list[bytes]:
        return [message for batch in self.batches for message in batch]


def test_a_call_says_when_its_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[WireProtocol] = []
    original = WireProtocol.connection_made

    def connection_made(self: WireProtocol, transport: asyncio.BaseTransport) -> None:
        original(self, transport)
        made.append(self)

    monkeypatch.setattr(WireProtocol, "connection_made", connection_made)

    async def scenario() -> None:
        async with connected() as (_, channel):
            call = await channel.open("/test.Wire/EchoStream", CallHandler())
            call.give_up_after(1.5)
            call.give_up_after(2)  # The shortest one counts.
            found = [tcp_option(each, socket.TCP_USER_TIMEOUT) for each in made]
            assert sorted(found) == [0, 1500]  # The other end has no such limit.
            call.cancel()

    run(scenario())


def test_a_connection_has_that_limit_from_its_options() -> None:
    async def scenario() -> None:
        async with connected(options=WireOptions(unacknowledged_s=1.5)) as (_, channel):
            await channel.open("/test.Wire/EchoStream", CallHandler())
            [connection] = channel._connections
            assert tcp_option(connection, socket.TCP_USER_TIMEOUT) == 1500

    run(scenario())


@pytest.mark.parametrize("error", [TimeoutError(110, "timed out"), ConnectionResetError(), None])
def test_a_call_knows_whether_its_connection_timed_out(error: OSError | None) -> None:
    """Real cuts: `cluster-tests/processes/test_flapping_link.py`."""

    class Watching(CallHandler):
        def ended(self, status: RpcStatus) -> None:
            # In time for who handles the end.
            found.extend(call.timed_out for call in calls)

    calls: list[WireCall] = []
    found: list[bool] = []

    async def scenario() -> None:
        async with connected() as (_, channel):
            calls.append(await channel.open("/test.Wire/EchoStream", Watching()))
            [connection] = channel._connections
            connection.abandon()
            connection.connection_lost(error)
            assert found == [isinstance(error, TimeoutError)]

    run(scenario())


def test_a_connection_whose_first_packets_are_lost_is_asked_for_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the kernel does that, after a second."""
    asked = 0
    reaches = WireChannel._connected_once

    async def reaches_the_third_time(self: WireChannel) -> WireProtocol:
        nonlocal asked
        asked += 1
        if asked <= len(ASKED_ANEW_AFTER_S):
            await asyncio.get_running_loop().create_future()
        return await reaches(self)

    monkeypatch.setattr(WireChannel, "_connected_once", reaches_the_third_time)

    async def scenario() -> None:
        async with connected() as (_, channel):
            call = await channel.stream("/test.Wire/EchoStream", timeout_s=10)
            await call.write(b"x")
            assert await call.read() == b"x"
            call.cancel()

    run(scenario())
    assert asked == len(ASKED_ANEW_AFTER_S) + 1


def tcp_option(protocol: WireProtocol, option: int) -> int:
    assert protocol.tcp is not None
    return protocol.tcp.socket.getsockopt(socket.IPPROTO_TCP, option)


async def connected_to_a_socket() -> tuple[asyncio.Transport, WireProtocol, socket.socket]:
    """A client's connection that keeps nothing unsent, and the peer that accepted it."""
    loop = asyncio.get_running_loop()
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        transport, protocol = await loop.create_connection(
            lambda: WireProtocol(WireOptions(unsent_bytes_high=0), client=True), HOST, port
        )
        peer, _ = listening.accept()
    return transport, protocol, peer


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_what_the_kernel_says_that_it_takes_at_once_is_taken() -> None:
    """By a peer that doesn't read, until there is no room. Nothing is said while anything waits."""

    async def scenario() -> None:
        transport, protocol, peer = await connected_to_a_socket()
        with peer:
            said: list[int] = []
            while (size := protocol.taken_at_once()) > 0:
                said.append(size)
                transport.write(bytes(size))
                assert not protocol.is_paused, said
            assert max(said) == UNSENT_BYTES_MAX
            call = protocol.open(
                "/x", "x", CallHandler(), scheme="http", metadata=(), timeout_s=None
            )
            call.send_now([bytes(MIB)])
            assert call.taken_at_once() == 0
            transport.abort()
            await protocol.lost
            assert protocol.taken_at_once() == 0

    run(scenario())


@pytest.mark.skipif(TCP_CORK is None, reason="Linux has it")
def test_messages_behind_a_cork_leave_together() -> None:
    async def scenario() -> None:
        _, protocol, peer = await connected_to_a_socket()
        with peer:
            call = protocol.open(
                "/x", "x", CallHandler(), scheme="http", metadata=(), timeout_s=None
            )
            call.send_now([b"before it"])
            peer.settimeout(leeway(5))
            assert b"before it" in peer.recv(MIB)
            call.cork(True)
            call.send_now([b"first"])
            call.send_now([b"second"])
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                peer.recv(MIB)
            call.cork(False)
            peer.settimeout(leeway(5))
            data = peer.recv(MIB)
            assert b"first" in data
            assert b"second" in data
            protocol.abandon()
            # The connection is given up, and its owner isn't told yet; then it is.
            call.cork(True)
            await protocol.lost
            call.cork(True)
            # No descriptor of it is left open: the peer hears the end.
            assert not peer.recv(MIB)

    run(scenario())


def test_messages_of_one_turn_arrive_as_one_batch() -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            handler = Collecting()
            call = await channel.open("/test.Wire/EchoStream", handler)
            for number in range(100):
                call.send([b"%d" % number])
            call.half_close()
            await until(lambda: handler.status is not None)
            assert handler.status == RpcStatus(Code.OK)
            assert handler.messages == [b"%d" % number for number in range(100)]
            assert len(handler.batches) == 1

    run(scenario())


@pytest.mark.parametrize("size", [0, 1, 65_530, 5 * MIB])
def test_a_unary_call_brings_back_its_bytes(size: int) -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            request = random.Random(1).randbytes(size)
            assert await channel.unary("/test.Wire/Echo", request) == request

    run(scenario())


def test_many_calls_share_one_connection_and_wait_for_their_turn() -> None:
    async def scenario() -> None:
        async with connected(WireOptions(streams_max=3)) as (server, channel):
            answers = await asyncio.gather(
                *(channel.unary("/test.Wire/Echo", b"%d" % n) for n in range(200))
            )
            assert answers == [b"%d" % n for n in range(200)]
            assert len(server.connections) == 1

    run(scenario())


def test_calls_that_come_together_begin_in_several_turns_of_the_loop() -> None:
    """A client that declares thousands of queues at once doesn't hold the loop of a node."""
    number, turn = 10 * EVENTS_AT_ONCE, 0
    begun: Counter[int] = Counter()

    def counted(call: WireCall) -> CallHandler:
        begun[turn] += 1
        return ROUTES["/test.Wire/Echo"](call)

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        routes = {"/test.Wire/Counted": counted}
        async with serving(WireOptions(streams_max=number), routes) as (_, port):
            channel = WireChannel(f"{HOST}:{port}")
            counting = asyncio.create_task(turns())
            calls = (channel.unary("/test.Wire/Counted", b"%d" % n) for n in range(number))
            assert await asyncio.gather(*calls) == [b"%d" % n for n in range(number)]
            counting.cancel()
            await channel.close()

    run(scenario())
    assert sum(begun.values()) == number
    # A turn may have the rest of one input and the beginning of the next one.
    assert max(begun.values()) <= 2 * EVENTS_AT_ONCE


def test_a_status_with_all_its_parts_comes_back() -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            metadata = (("x-key", "value"), ("x-raw-bin", b"\x00\xff"))
            with pytest.raises(RpcError) as caught:
                await channel.unary("/test.Wire/Shout", b"", metadata=metadata)
            status = caught.value.status
            assert status == RpcStatus(Code.ABORTED, "größer als 100 %\n", b"\x08\x0a", metadata)

    run(scenario())


@pytest.mark.parametrize(
    ("path", "code"),
    [("/test.Wire/Nothing", Code.UNIMPLEMENTED), ("/test.Wire/Wait", Code.DEADLINE_EXCEEDED)],
)
def test_a_call_that_goes_wrong_says_how(path: str, code: Code) -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            with pytest.raises(RpcError) as caught:
                await channel.unary(path, b"", timeout_s=0.1)
            assert caught.value.status.code is code

    run(scenario())


@pytest.mark.logs("as the test wants it")
def test_a_handler_that_raises_ends_its_call_and_no_other() -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            with pytest.raises(RpcError) as caught:
                await channel.unary("/test.Wire/Fail", b"")
            assert caught.value.status.code is Code.UNKNOWN
            assert await channel.unary("/test.Wire/Echo", b"1") == b"1"

    run(scenario())


def test_a_cancelled_call_cancels_the_task_that_serves_it() -> None:
    async def scenario() -> None:
        def serving_tasks() -> list[str]:
            names = [task.get_name() for task in asyncio.all_tasks()]
            return [name for name in names if name.startswith("serve")]

        async with connected() as (_, channel):
            stream = await channel.stream("/test.Wire/Wait")
            await until(lambda: bool(serving_tasks()))
            stream.call.cancel()
            await until(lambda: not serving_tasks())

    run(scenario())


def test_a_writer_waits_for_a_slow_reader_and_memory_stays_bounded() -> None:
    async def scenario() -> None:
        small = WireOptions(
            stream_window_bytes=65_535, connection_window_bytes=65_535, send_bytes_high=100_000
        )
        async with connected(small, small) as (server, channel):
            stream = await channel.stream("/test.Wire/Count")
            await stream.write(b"1000 10000")
            assert await stream.read() is not None
            (connection,) = server.connections
            await until(lambda: len(connection.core.calls.streams) == 1)
            (served,) = connection.core.calls.streams.values()
            await until(lambda: served.paused)
            # What the server wanted to send in this time: 10 MB.
            assert served.queued_bytes < 200_000
            read = 1
            while batch := await stream.read_batch():
                read += len(batch)
            assert read == 1000

    run(scenario())


def test_calls_go_on_while_the_server_stops_and_new_ones_do_not_begin() -> None:
    async def scenario() -> None:
        async with connected() as (server, channel):
            stream = await channel.stream("/test.Wire/EchoStream")
            await stream.write(b"1")
            assert await stream.read() == b"1"
            stopping = asyncio.create_task(server.stop(5))
            await until(lambda: channel._current is None)
            with pytest.raises(RpcError) as caught:
                await channel.unary("/test.Wire/Echo", b"")
            assert caught.value.status.code is Code.UNAVAILABLE
            await stream.write(b"2")
            assert await stream.read() == b"2"
            stream.call.half_close()
            assert await stream.read() is None
            await stopping
            assert not server.connections

    run(scenario())


def test_a_channel_connects_again_when_the_server_is_back() -> None:
    async def scenario() -> None:
        backoff = Backoff(0.01, 0.02, random.Random(1))
        async with serving() as (server, port):
            channel = WireChannel(f"{HOST}:{port}", backoff=backoff)
            assert await channel.unary("/test.Wire/Echo", b"1") == b"1"
            await server.stop(0)
        with pytest.raises(RpcError) as caught:
            await channel.unary("/test.Wire/Echo", b"2")
        assert caught.value.status.code is Code.UNAVAILABLE
        waiting = asyncio.create_task(
            channel.unary("/test.Wire/Echo", b"3", wait_for_ready=True, timeout_s=10)
        )
        await asyncio.sleep(0)
        async with serving() as (server, _):
            await server.listen(HOST, port)
            assert await waiting == b"3"
            await channel.close()

    run(scenario())


def test_a_call_that_waits_for_a_connection_has_a_deadline() -> None:
    async def scenario() -> None:
        # Long enough for the first attempt to fail, which takes no time on a machine that has any.
        with socket.socket() as nobody:
            nobody.bind((HOST, 0))
            channel = WireChannel(f"{HOST}:{nobody.getsockname()[1]}")
            with pytest.raises(RpcError) as caught:
                await channel.unary("/a/b", b"", wait_for_ready=True, timeout_s=1.0)
            assert caught.value.status.code is Code.DEADLINE_EXCEEDED
            assert "connecting to" in caught.value.status.message
            await channel.close()

    run(scenario())


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_that_no_host_can_have_is_an_attempt_that_fails(host: str) -> None:
    async def scenario() -> None:
        channel = WireChannel(f"{host}:1")
        with pytest.raises(RpcError, match="connecting to") as caught:
            await channel.unary("/a/b", b"", timeout_s=5.0)
        assert caught.value.status.code is Code.UNAVAILABLE
        await channel.close()

    run(scenario())


def test_a_peer_that_never_speaks_is_given_up() -> None:
    async def scenario() -> None:
        # The kernel accepts, and nobody speaks.
        with socket.create_server((HOST, 0)) as silent:
            address = f"{HOST}:{silent.getsockname()[1]}"
            channel = WireChannel(address, WireOptions(handshake_timeout_s=0.1))
            with pytest.raises(RpcError) as caught:
                await channel.unary("/a/b", b"")
            assert "no SETTINGS within 0.1 s" in caught.value.status.message
            await channel.close()

    run(scenario())


@pytest.mark.parametrize("on", LOOPS.values(), ids=LOOPS)
def test_an_attempt_that_is_given_up_as_it_succeeds_is_lost(
    on: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timer would write to a transport that is closed."""
    made: list[WireProtocol] = []
    original = WireProtocol.connection_made

    async def scenario() -> None:
        async with serving() as (_, port):
            channel = WireChannel(f"{HOST}:{port}")

            def connection_made(self: WireProtocol, transport: asyncio.BaseTransport) -> None:
                original(self, transport)
                if self._client and channel._connecting is not None and not made:
                    made.append(self)
                    channel._connecting.cancel()

            monkeypatch.setattr(WireProtocol, "connection_made", connection_made)
            call = asyncio.create_task(channel.unary("/test.Wire/Echo", b"x"))
            await until(lambda: bool(made))
            await until(lambda: made[0].lost.done(), within_s=2)
            assert made[0]._timer is None
            # The next call dials anew.
            assert await channel.unary("/test.Wire/Echo", b"y") == b"y"
            assert await call == b"x"
            await channel.close()

    run(scenario(), on=on)


def test_a_closed_channel_begins_no_calls() -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            stream = await channel.stream("/test.Wire/Wait")
            await channel.close()
            assert stream.status is not None
            assert stream.status.code is Code.UNAVAILABLE
            with pytest.raises(CallClosedError):
                await channel.unary("/test.Wire/Echo", b"")

    run(scenario())


def test_an_answer_of_several_messages_to_a_unary_call_is_an_error() -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            with pytest.raises(RpcError) as caught:
                await channel.unary("/test.Wire/Count", b"3 1")
            assert caught.value.status.code is Code.INTERNAL

    run(scenario())


def test_credit_by_hand_holds_the_sender() -> None:
    async def scenario() -> None:
        small = WireOptions(stream_window_bytes=65_535)
        async with connected(None, small) as (_, channel):
            handler = Collecting()
            call: WireCall = await channel.open("/test.Wire/Count", handler)
            call.credit_by_hand = True
            call.send([b"100 9999"])
            await until(lambda: len(handler.messages) == 6)
            size = sum(len(m) + 5 for m in handler.messages)
            # Nothing more comes: that needs a look at the sender's window, not a pause.
            assert call.stream.receive_window == 65_535 - size - call.stream.reassembly.held_bytes
            call.consumed(size)
            await until(lambda: len(handler.messages) > 6)
            call.cancel()

    run(scenario())


def test_pauses_grow_to_the_longest_and_begin_anew_after_a_success() -> None:
    class NoJitter:
        def uniform(self, a: float, b: float) -> float:
            return 0.0

    backoff = Backoff(1.0, 3.0, NoJitter())
    assert [backoff.pause_s() for _ in range(4)] == [1.0, 1.6, pytest.approx(2.56), 3.0]
    backoff.reset()
    assert backoff.pause_s() == 1.0


@pytest.mark.parametrize("address", ["here", "here:port", ":"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        WireChannel(address)


@pytest.mark.parametrize("side", ["channel", "server"])
def test_a_peer_that_does_not_read_holds_up_no_close(side: str) -> None:
    """A link to a node that hangs is dialled again at once; a node that stops, stops."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        handler = Collecting()
        if side == "channel":
            # It speaks, opens its windows, and never reads again.
            with socket.create_server((HOST, 0)) as listening:
                listening.setblocking(False)
                channel = WireChannel(f"{HOST}:{listening.getsockname()[1]}")
                opening = asyncio.create_task(channel.open("/test.Wire/Echo", handler))
                peer, _ = await loop.sock_accept(listening)
                window = frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**30)])
                await loop.sock_sendall(peer, window + frames.window_update(0, 2**30))
                call = await opening
                call.send([bytes(10 * MIB)])
                await until(lambda: 0 < call.waiting_bytes < 10 * MIB)
                began = loop.time()
                await channel.close()
        else:
            server = WireServer({"/test.Wire/Count": ROUTES["/test.Wire/Count"]})
            port = await server.listen(HOST, 0)
            peer = socket.create_connection((HOST, port))
            peer.setblocking(False)
            client = Connection(client=True, options=WireOptions(), now=loop.time())
            stream = client.calls.open("/test.Wire/Count", "a", now=loop.time())
            client.calls.send(stream, [b"10 5000000"])
            window = frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**30)])
            pieces = b"".join(client.take(2**20)) + window + frames.window_update(0, 2**30)
            await loop.sock_sendall(peer, pieces)
            await until(lambda: any(link.is_paused for link in server.connections))
            began = loop.time()
            await server.stop(0)
        assert loop.time() - began < leeway(2.0)
        peer.close()

    run(scenario())


def test_a_stream_that_is_cancelled_here_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            stream = await channel.stream("/test.Wire/Wait")
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            stream.cancel()
            with pytest.raises(RpcError, match="CANCELLED"):
                await reading
            with pytest.raises(RpcError, match="CANCELLED"):
                await stream.write(b"x")

    run(scenario())


def test_a_turn_that_is_given_up_goes_to_the_next() -> None:
    """At the peer's limit of streams: the first that waits is cancelled as its turn comes."""

    waiting: list[asyncio.Task[CallStream]] = []

    class Cancelling(CallHandler):
        def ended(self, status: RpcStatus) -> None:
            # In the turn in which it is promised the connection.
            asyncio.get_running_loop().call_soon(waiting[0].cancel)

    async def scenario() -> None:
        async with connected(WireOptions(streams_max=1)) as (_, channel):
            held = await channel.open("/test.Wire/EchoStream", Cancelling())
            for _ in range(2):
                opening = channel.stream("/test.Wire/EchoStream")
                waiting.append(asyncio.create_task(opening))
            await asyncio.sleep(0)
            held.half_close()
            async with asyncio.timeout(30):
                stream = await waiting[1]
                await stream.write(b"x")
                assert await stream.read() == b"x"
            assert waiting[0].cancelled()

    run(scenario())


def test_a_call_that_found_no_connection_was_surely_not_processed() -> None:
    async def scenario() -> None:
        with socket.create_server((HOST, 0)) as silent:
            address = f"{HOST}:{silent.getsockname()[1]}"
            channel = WireChannel(address)
            with pytest.raises(RpcError) as caught:
                await channel.unary("/test.Wire/Echo", b"", timeout_s=0.05)
            assert caught.value.status.code is Code.DEADLINE_EXCEEDED
            assert caught.value.status.unprocessed
            await channel.close()

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_connection_is_idle_from_the_end_of_its_last_call(loop: LoopFactory) -> None:
    """That end sets no timer, and the one of the connection's beginning has passed by then."""

    async def scenario() -> None:
        async with connected(WireOptions(idle_timeout_s=0.1)) as (server, channel):
            stream = await channel.stream("/test.Wire/EchoStream")
            await asyncio.sleep(0.3)
            assert server.connections
            stream.cancel()
            await until(lambda: not server.connections)

    run(scenario(), on=loop)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_peer_that_closes_its_half_and_does_not_read_is_given_up(
    loop: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy may do whose client is gone. Its calls went on for ever: a consumer's messages
    belonged to nobody else."""
    monkeypatch.setattr("ringmq_wire.transport.CLOSE_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with serving() as (server, port):
            client = Connection(client=True, options=WireOptions(), now=0.0)
            stream = client.calls.open("/test.Wire/Count", "x", now=0.0)
            client.calls.send(stream, [b"1000 100000"])
            client.outflow.widen_connection(MIB)
            with socket.create_connection((HOST, port)) as peer:
                peer.sendall(b"".join(client.take(MIB)))
                peer.sendall(frames.frame(frames.SETTINGS, frames.ACK, 0))
                peer.sendall(frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**30)]))
                peer.sendall(frames.window_update(0, 2**30))
                await until(lambda: any(each.is_paused for each in server.connections))
                peer.shutdown(socket.SHUT_WR)
                await until(lambda: not server.connections)

    run(scenario(), on=loop)


@pytest.mark.parametrize("is_read", [True, False], ids=["is read", "is cancelled"])
def test_a_message_is_taken_when_none_of_it_waits_any_more(*, is_read: bool) -> None:
    """`write` returns while little waits: a budget that counts it would end too early."""
    taken: list[bool] = []

    async def serve(stream: CallStream) -> None:
        await stream.write(bytes(60_000))
        await stream.write_taken(bytes(50_000))
        taken.append(not stream.call.waiting_bytes)

    async def scenario() -> None:
        async with serving(routes={"/test.Wire/Taken": streaming(serve)}) as (server, port):
            channel = WireChannel(f"{HOST}:{port}", WireOptions(stream_window_bytes=65_535))
            handler = Collecting()
            call = await channel.open("/test.Wire/Taken", handler)
            call.credit_by_hand = True
            (connection,) = server.connections
            calls = connection.core.calls.streams
            # The client's window is full: of two messages with 5 bytes each, more than it waits.
            await until(
                lambda: [each.queued_bytes for each in calls.values()] == [110_010 - 65_535]
            )
            assert not taken
            if is_read:
                call.consumed(60_005)
                await until(lambda: handler.status is not None)
                assert taken == [True]
            else:
                call.cancel()
                await until(lambda: not server._serving)
                assert not taken
            await channel.close()

    run(scenario())
