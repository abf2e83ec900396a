"""Damaged files of a message store: a body is read as it was put, or as `CorruptError`."""

from __future__ import annotations

import random

import pytest
from node.tests.storage.messages.verbs import (
    DIRECTORY,
    block_of,
    collect,
    names,
    open_store,
    put_all,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.storage.errors import CorruptError
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.offline.body_files import BodyFiles
from ringmq_node.storage.offline.faults import Findings


def made(rng: random.Random) -> tuple[SimulatedDisk, dict[RecordLocation, int]]:
    """Files, maps that lead to files, and a file that was moved into twice."""
    disk = SimulatedDisk()
    live: dict[RecordLocation, int] = {}
    store = open_store(disk)
    store.start_collecting()
    for turn in range(3):
        numbers = range(100 * turn, 100 * turn + 30)
        blocks = [block_of(number, rng.randrange(50, 900)) for number in numbers]
        live |= dict(zip(put_all(store, disk, blocks), numbers, strict=True))
        for location in rng.sample([*live], len(live) * 2 // 3):
            del live[location]
            store.release(location)
        collect(store, disk)
    return disk, live


def damage(rng: random.Random, data: bytearray) -> None:
    if not data:
        return
    at = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        case 3:
            data[at : at + 100] = rng.randbytes(len(data[at : at + 100]))
        case 4:
            other = rng.randrange(len(data))
            data[at : at + 300] = data[other : other + len(data[at : at + 300])]


def survive(seed: int) -> int:
    """The number of live records that could not be read."""
    rng = random.Random(seed)
    disk, live = made(rng)
    for _ in range(rng.randrange(1, 6)):
        damage(rng, disk.content(DIRECTORY / rng.choice(names(disk))))
    if rng.random() < 0.3:
        disk.remove(DIRECTORY / rng.choice(names(disk)))
    verify(disk)
    store = open_store(disk)
    for location in live:
        store.share(location)
    store.start_collecting()
    lost = 0
    for turn in range(3):
        lost = 0
        for location, number in live.items():
            try:
                assert store.read(location).bodies()[0][:8] == number.to_bytes(8, "little")
            except CorruptError:
                lost += 1
        for location in [*live][:: 3 - turn]:
            store.release(location)
            del live[location]
        put_all(store, disk, [block_of(number, 900) for number in range(5)])
        collect(store, disk)
        store.check()
    return lost


def verify(disk: SimulatedDisk) -> None:
    """The offline reader gets through all of it, too."""
    findings = Findings(DIRECTORY)
    files = BodyFiles(disk, DIRECTORY, findings, set())
    for name, size in disk.list(DIRECTORY).items():
        if name.endswith(".rdq"):
            assert files.check(int(name[:-4]), size).torn_bytes <= size


@pytest.mark.parametrize("part", range(4))
def test_damage_is_never_taken_for_a_message(part: int) -> None:
    lost = [survive(seed) for seed in range(25 * part, 25 * part + 25)]
    assert any(lost)


@pytest.mark.slow
@pytest.mark.compute
@pytest.mark.parametrize("part", range(4))
def test_much_damage_is_never_taken_for_a_message(part: int) -> None:
    for seed in range(1000 + 400 * part, 1400 + 400 * part):
        survive(seed)


def test_a_file_in_the_place_of_another_is_not_taken_for_it() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    live: dict[RecordLocation, int] = {}
    for number in range(40):
        live[put_all(store, disk, [block_of(number, 600)])[0]] = number
    files = sorted({location.file for location in live})
    first, last = files[0], files[-1]
    assert first != last
    path = DIRECTORY / f"{first}.rdq"
    copied = disk.read(path, 0, 1 << 20)
    disk.remove(DIRECTORY / f"{last}.rdq")
    disk.write(DIRECTORY / f"{last}.rdq", 0, [copied], sync=True)
    again = open_store(disk)
    for location in live:
        again.share(location)
    for location, number in live.items():
        if location.file == last:
            with pytest.raises(CorruptError, match=f"is store file {first}"):
                again.read(location)
        else:
            assert again.read(location).data == block_of(number, 600).data
