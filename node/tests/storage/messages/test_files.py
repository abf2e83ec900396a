"""Names of files, and the states that a file goes through."""

from __future__ import annotations

import pytest
from node.tests.storage.messages.verbs import (
    DIRECTORY,
    block_of,
    collect,
    commit,
    open_store,
    put_all,
    step,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.storage.messages.files import (
    NEXT_STATES,
    DataFile,
    FileState,
    LostFile,
    MovedFile,
    parse_name,
)
from ringmq_node.storage.messages.steps import CopyJob, PublishJob


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("12.rdq", (12, ".rdq")),
        ("7.map", (7, ".map")),
        ("7.map.new", None),
        ("x.rdq", None),
        ("-1.rdq", None),
        ("4294967294.rdq", (4294967294, ".rdq")),
        ("4294967295.rdq", None),
        ("99999999999.rdq", None),
    ],
)
def test_names(name: str, parsed: tuple[int, str] | None) -> None:
    assert parse_name(name) == parsed


PAIRS = [(now, then) for now in FileState for then in FileState]


@pytest.mark.parametrize(("now", "then"), PAIRS, ids=lambda state: state.value)
def test_a_state_that_is_not_next_in_the_table_is_refused(now: FileState, then: FileState) -> None:
    file = DataFile(1, state=now)
    if then in NEXT_STATES[now]:
        file.become(then)
        assert file.state is then
        return
    with pytest.raises(AssertionError, match="file 1"):
        file.become(then)
    assert file.state is now


def test_a_file_that_is_compacted_goes_through_the_table() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    store.start_collecting()
    files = store._catalogue.files

    def state() -> FileState | type:
        file = files[1]
        return file.state if isinstance(file, DataFile) else type(file)

    first = [store.put(block_of(number, 800))[0] for number in range(4)]
    assert state() is FileState.GROWING
    places = first + [store.put(block_of(number, 800))[0] for number in range(4, 16)]
    assert state() is FileState.SEALED
    commit(store, disk)
    assert state() is FileState.SETTLED
    for place in (*places[1:4], *places[5:8], *places[9:12]):
        store.release(place)
    assert isinstance(step(store, disk), CopyJob)
    assert state() is FileState.VICTIM
    while not isinstance(step(store, disk), PublishJob):
        pass
    assert state() is MovedFile
    store.release(places[0])
    collect(store, disk)
    assert 1 not in files
    # A start that finds a reference to it: the location is older than the loss.
    store = open_store(disk)
    store.share(places[0])
    assert isinstance(store._catalogue.files[1], LostFile)


def test_a_victim_with_a_damaged_header_is_stuck() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    store.start_collecting()
    places = put_all(store, disk, [block_of(number, 800) for number in range(13)])
    for place in (*places[1:3], *places[5:8], *places[9:12]):
        store.release(place)
    disk.content(DIRECTORY / "1.rdq")[places[1].offset + 20] ^= 1
    collect(store, disk)
    file = store._catalogue.files[1]
    assert isinstance(file, DataFile)
    assert file.state is FileState.STUCK
    assert store.read(places[3]).data == block_of(3, 800).data
    store.release(places[0])
    store.release(places[3])
    collect(store, disk)
    assert 1 not in store._catalogue.files
