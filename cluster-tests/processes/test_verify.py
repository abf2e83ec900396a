"""`ringmq queue verify` on replicas that are equal, in use, and damaged."""

from __future__ import annotations

from pathlib import Path

from nemesis import Cluster, scenario

from ringmq import DifferenceKind
from ringmq_node.storage.format.formats import JOURNAL
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import RECORD_HEADER_BYTES, RecordKind, record_header


def falsify(folder: Path, body: bytes, other: bytes) -> None:
    """Gives a message another body on this disk, with a checksum that is right."""
    for path in folder.rglob("*.jif"):
        place = path.read_bytes().find(body)
        if place >= 0:
            _rewrite(path, place, other)
            return
    raise AssertionError(f"{body!r} is in no journal of {folder}")


def _rewrite(path: Path, place: int, other: bytes) -> None:
    data = bytearray(path.read_bytes())
    file = RecordFile(str(path), JOURNAL, len(data), lambda at, size: bytes(data[at : at + size]))
    records = file.scan(lambda header, payload: payload).records
    header = next(each for each, _ in records if each.offset < place < each.end)
    data[place : place + len(other)] = other
    payload = bytes(data[header.offset + RECORD_HEADER_BYTES : header.end])
    data[header.offset : header.offset + RECORD_HEADER_BYTES] = record_header(
        file.marker,
        header.offset,
        RecordKind(header.kind),
        payload,
        flags=header.flags,
        number=header.number,
        epoch=header.epoch,
        synced=header.synced,
    )
    path.write_bytes(data)


@scenario(deadline_s=90, queue="")
async def test_replicas_are_compared_in_use_and_a_changed_body_is_named(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.declare_queue("q")
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"%06d" % at + bytes(500) for at in range(2000)])
        found = await client.operator.verify_queue("q")
        assert found.done
        assert (found.messages, found.differences, len(found.nodes)) == (2000, (), 3)
        assert found.bytes >= 2000 * 506

        await client.declare_queue("busy")
        # Beside a publisher and a consumer that never stop.
        async with cluster.publishing("busy", total=10_000) as load, cluster.consuming("busy"):
            for _ in range(2):
                found = await client.operator.verify_queue("busy")
                assert found.done
                assert found.differences_total == 0, found.differences
            await load.finishes(within_s=40)

        await client.declare_queue("still")
        async with client.publisher("still") as publisher:
            await publisher.publish_batch([b"still %06d" % at + bytes(500) for at in range(100)])
    mirror = (await cluster.mirrors_of("still"))[0]
    cluster.kill(*cluster.nodes)
    falsify(cluster.data(mirror), b"still 000042", b"still 000043")
    await cluster.start()
    await cluster.wait_synchronised("still", within_s=40)
    async with cluster.client() as client:
        found = await client.operator.verify_queue("still")
        assert found.differences_total == 1
        (difference,) = found.differences
        assert (difference.position, difference.kind) == (42, DifferenceKind.BODY)
        assert mirror in (difference.node, difference.other)
