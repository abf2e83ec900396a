"""Each kind of damage: told with its place, its queue and its positions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from node.tests.storage.offline.directory import (
    COPY,
    LARGE,
    PERSISTENT,
    SMALL,
    check,
    faults_in,
    flip,
    headers,
    queue_file,
)

from ringmq_node.storage.format.records import RECORD_HEADER_BYTES
from ringmq_node.storage.offline.faults import FAULTS_PER_FILE_MAX, Findings


def test_a_flipped_bit_in_a_body_in_a_journal(killed: Path) -> None:
    """The body counts: a record behind it says that it was durable."""
    journal = queue_file(killed, SMALL, "journal.jif")
    hit = [header for header in headers(journal) if header.length > 500][-2]
    flip(journal, hit.end - 3)
    found = check(killed)
    fault = faults_in(found, killed, journal)[0]
    assert (fault.offset, fault.length) == (hit.offset, hit.end - hit.offset)
    assert "checksum" in fault.what
    assert fault.queue == SMALL
    # The positions of the damaged publish live: the journal behind it goes on from there.
    assert found.messages == 900 + 2 * 152
    assert found.messages_unreadable == 50
    (bare,) = (fault for fault in found.faults if fault.first is not None)
    assert (bare.first, bare.last, bare.queue) == (900, 949, SMALL)


@pytest.mark.parametrize("place", ["header", "table", "body"])
def test_a_flipped_bit_in_a_segment(root: Path, place: str) -> None:
    """Recovery passes over bodies; `verify` doesn't."""
    segment = queue_file(root, SMALL, "0.idx")
    hit = headers(segment)[1]
    at = {"header": 20, "table": RECORD_HEADER_BYTES + 9, "body": hit.end - hit.offset - 1}[place]
    flip(segment, hit.offset + at)
    found = check(root)
    fault, *_ = faults_in(found, root, segment)
    assert (fault.offset, fault.length) == (hit.offset, hit.end - hit.offset)
    assert found.messages_unreadable == 100
    whose = [each for each in found.faults if each.first is not None]
    assert [(each.queue, each.first, each.last) for each in whose] == [(SMALL, 350, 449)]


@pytest.mark.parametrize("queue", [LARGE, COPY])
def test_a_flipped_bit_in_a_table_of_references(root: Path, queue: str) -> None:
    segment = queue_file(root, queue, "0.idx")
    (record,) = headers(segment)
    flip(segment, record.offset + RECORD_HEADER_BYTES + 30)
    found = check(root)
    assert not found.sound
    assert faults_in(found, root, segment)
    assert found.messages_unreadable == 104


@pytest.mark.parametrize("place", ["header", "body"])
def test_a_flipped_bit_in_a_record_of_the_message_store(root: Path, place: str) -> None:
    """Both queues that share it are told, with the positions that are hit."""
    path = root / PERSISTENT / "1.rdq"
    hit = headers(path)[0]
    flip(path, hit.offset + (12 if place == "header" else 2_000))
    found = check(root)
    assert found.messages_unreadable == 8
    told = faults_in(found, root, path)
    assert {(each.offset, each.length) for each in told} == {(hit.offset, hit.end - hit.offset)}
    whose = [(each.queue, each.first, each.last) for each in told if each.queue is not None]
    assert sorted(whose) == [(COPY, 0, 3), (LARGE, 0, 3)]


def test_damage_to_garbage_is_damage_and_no_message_is_lost(root: Path) -> None:
    path = root / PERSISTENT / "1.rdq"
    hit = headers(path)[1]
    flip(path, hit.offset + 2_000)
    found = check(root)
    assert not found.sound
    assert found.messages_unreadable == 0
    assert [(each.offset, each.queue) for each in found.faults] == [(hit.offset, None)]


def test_a_store_file_that_is_missing(root: Path) -> None:
    path = root / PERSISTENT / "1.rdq"
    path.unlink()
    found = check(root)
    assert found.messages_unreadable == 2 * 2 * 4
    told = faults_in(found, root, path)
    assert {each.what for each in told} == {"the file is not there, or is empty"}
    assert {each.queue for each in told} == {LARGE, COPY}


def test_a_store_file_that_was_cut_short(root: Path) -> None:
    path = root / PERSISTENT / "1.rdq"
    last = headers(path)[-1]
    os.truncate(path, last.end - 1)
    found = check(root)
    assert found.messages_unreadable == 8
    assert {each.offset for each in faults_in(found, root, path)} == {last.offset}


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_map_that_is_lost(root: Path, harm: str) -> None:
    path = next(iter(sorted((root / PERSISTENT).glob("*.map"))))
    if harm == "gone":
        path.unlink()
    else:
        flip(path, path.stat().st_size - 1)
    found = check(root)
    assert found.messages_unreadable == 8
    assert path.stem in {Path(each.file).stem for each in found.faults}


def test_a_record_in_the_place_of_another(root: Path) -> None:
    """Whole, with a good checksum, in a store file of the same size: but not the same file."""
    one, other = root / PERSISTENT / "1.rdq", root / PERSISTENT / "30.rdq"
    shutil.copyfile(other, one)
    found = check(root)
    assert faults_in(found, root, one)[0].what == "this is store file 30, expected 1"
    assert found.messages_unreadable == 2 * 2 * 4


def test_a_file_of_another_queue(root: Path) -> None:
    path = queue_file(root, SMALL, "0.idx")
    shutil.copyfile(queue_file(root, COPY, "0.idx"), path)
    found = check(root)
    assert faults_in(found, root, path)[0].what == "a file of another kind, or of another queue"
    assert found.messages_unreadable == 800


@pytest.mark.parametrize("name", ["journal.jif", "0.idx", "queue.name"])
def test_a_queue_file_that_is_gone(root: Path, name: str) -> None:
    queue_file(root, SMALL, name).unlink()
    found = check(root)
    assert not found.sound
    with_text = " ".join(fault.what for fault in found.faults)
    assert {"journal.jif": "ops were lost", "0.idx": "no body", "queue.name": "name is lost"}[
        name
    ] in with_text


def test_a_folder_under_a_wrong_name(root: Path) -> None:
    folder = queue_file(root, SMALL, "queue.name").parent
    shutil.copytree(folder, folder.with_name("0" * 32))
    found = check(root)
    assert not found.sound
    assert any("the folder of this queue is" in fault.what for fault in found.faults)


def test_no_number_of_faults_is_too_many(tmp_path: Path) -> None:
    """They are counted, and the first of each file are kept."""
    findings = Findings(tmp_path)
    for offset in range(50):
        findings.add(tmp_path / "1.idx", offset, 1, "damaged")
        findings.add(tmp_path / "1.idx", offset, 1, "the same place again")
    assert findings.faults_total == 50
    assert [fault.offset for fault in findings.faults] == [*range(FAULTS_PER_FILE_MAX)]
