"""The facade without asyncio. One loop per process is gRPC's wish, so it has a process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from children import child_environment

SCRIPT = """
    import ringmq
    from fake_broker import FakeNode
    from ringmq import sync

    node = FakeNode()
    sync._run(node.__aenter__())
    with ringmq.connect_sync(node.address) as client:
        client.declare_queue("q")
        with client.publisher("q") as publisher:
            publisher.publish(b"one")
            publisher.publish_batch(b"%d" % n for n in range(1000))
            assert publisher.submit_batch([b"b"] * 500).result(10) is None
            futures = [publisher.submit(b"s") for _ in range(10)]
            publisher.flush()
            assert all(future.done() and future.exception() is None for future in futures)
            node.faults.confirm_delay_s = 0.2
            confirm = publisher.submit(b"cancelled")
            assert confirm.cancel()
            publisher.flush()
            node.faults.confirm_delay_s = 0.0
            assert confirm.cancelled()
            try:
                publisher.publish(b"x" * 2_000_000)
            except ringmq.MessageTooLargeError as error:
                print(error)
        told = []
        node.faults.blocked = [[ringmq.BlockReason.DISK.value], []]
        with client.publisher(
            "q", on_blocked=told.append, on_unblocked=lambda: told.append(None)
        ) as publisher:
            publisher.publish(b"held")
            assert publisher.blocked_by == (ringmq.BlockReason.DISK,)
            publisher.publish(b"not held")
        assert told == [(ringmq.BlockReason.DISK,), None]
        count = 0
        with client.consumer("q", prefetch=100) as consumer:
            for batch in consumer:
                count += len(batch)
                assert consumer.ack(batch, wait=True)
                if count == 1514:
                    break
            assert consumer.next_batch(0.01) is None
        interrupted = []
        client.declare_queue("short-lived")
        with client.consumer("short-lived", on_interrupted=interrupted.append) as consumer:
            client.delete_queue("short-lived")
            try:
                consumer.next_batch(10)
            except ringmq.QueueNotFoundError:
                assert interrupted == [1]
        assert client.queue("q").messages_ready == 0
        assert client.set_queue_mode("q", ringmq.QueueMode.LAZY) is ringmq.QueueMode.DEFAULT
        assert client.declare_queue("q", mode=ringmq.QueueMode.LAZY).mode is ringmq.QueueMode.LAZY
        assert [info.queue for info in client.queues()] == ["q"]
        assert client.queue("q").durable
        assert not client.declare_queue("t", durable=False).durable
        client.delete_queue("t")
        assert client.cluster_status().registry_available
        policy = ringmq.Policy("p", "^q", mirrors=ringmq.Mirrors(2))
        assert client.operator.set_policy(policy) == 2
        assert client.operator.policies() == [policy]
        client.operator.delete_policy("p")
        try:
            client.operator.delete_policy("p")
        except ringmq.PolicyNotFoundError as error:
            print(error)
        client.operator.drain("a", evacuate=True)
        client.operator.revive("a")
        assert node.standings == {"a": (False, False)}
        planned = client.operator.rebalance(dry_run=True)
        assert planned == [ringmq.MasterMove("q", "a", "b")]
        assert client.delete_queue("q") == 0
        print("consumed", count)
    sync._run(node.die())
"""


# The client makes its loop by the program's policy. Here the program has set one.
UVLOOP = """
    import asyncio, uvloop
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
"""


@pytest.mark.slow
@pytest.mark.parametrize("prelude", ["", UVLOOP], ids=["asyncio", "uvloop"])
def test_a_script_publishes_and_consumes(prelude: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(prelude + SCRIPT)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "consumed 1514"
    assert "Traceback" not in done.stderr


ORDERED = """
    import ringmq
    from fake_broker import FakeNode
    from ringmq import sync

    node = FakeNode()
    sync._run(node.__aenter__())
    with ringmq.connect_sync(node.address) as client:
        client.declare_queue("q")
        with client.publisher("q") as publisher:
            calls = (
                publisher.publish,
                publisher.submit,
                lambda body: publisher.submit_batch([body]),
                lambda body: publisher.publish_batch([body]),
            )
            bodies = []
            for number in range(20):
                for call in calls:
                    bodies += [b"%d batch" % len(bodies), b"%d next" % len(bodies)]
                    publisher.submit_batch(bodies[-2:-1])
                    call(bodies[-1])
                publisher.submit_batch([b"flushed"])
                bodies.append(b"flushed")
                publisher.flush()
                assert node.queue("q").bodies == bodies, node.queue("q").bodies[-9:]
            publisher.submit_batch([b"last"])
        assert node.queue("q").bodies == [*bodies, b"last"]
        print("in order")
    sync._run(node.die())
"""


@pytest.mark.slow
def test_messages_of_one_thread_are_enqueued_in_the_order_of_its_calls() -> None:
    """A `publish` came before the `submit_batch` that its thread had called before it."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(ORDERED)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "in order"
    assert "Traceback" not in done.stderr


FORKED = """
    import gc, os, traceback
    import ringmq
    from fake_broker import FakeNode
    from ringmq import sync

    node = FakeNode()
    sync._run(node.__aenter__())
    client = ringmq.connect_sync(node.address)
    client.declare_queue("q")
    publisher = client.publisher("q")
    consumer = client.consumer("q")
    topology = client.topology
    publisher.publish(b"before")
    child = os.fork()
    if not child:
        status = 1
        try:
            for call in (
                lambda: client.queue("q"),
                lambda: publisher.publish(b"lost"),
                lambda: publisher.publish_batch([b"lost"]),
                lambda: consumer.next_batch(1),
                lambda: topology.vhosts(),
            ):
                try:
                    call()
                except ringmq.ClosedError as error:
                    assert "forked" in str(error)
                else:
                    raise AssertionError
            publisher.close()
            consumer.close()
            client.close()
            del publisher, consumer, topology, client
            gc.collect()
            with ringmq.connect_sync(node.address) as own, own.publisher("q") as publishing:
                publishing.publish(b"of the child")
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish(b"after")
    print([body for batch in iter(lambda: consumer.next_batch(0.5), None) for body in batch.bodies])
    client.close()
    sync._run(node.die())
"""


@pytest.mark.slow
def test_a_forked_process_has_a_loop_of_its_own() -> None:
    """Its clients waited for ever for the thread of the parent's loop."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[b'before', b'of the child', b'after']"
