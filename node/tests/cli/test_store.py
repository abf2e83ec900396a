"""`ringmq store`: its output, as JSON and as text, and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from node.tests.storage.offline.directory import (
    LARGE,
    PERSISTENT,
    SMALL,
    flip,
    headers,
    make,
    queue_file,
    write_version,
)

from ringmq_node.cli.app import invoke
from ringmq_node.storage import Store
from ringmq_node.storage.disk.data_directory import folder_name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "data")[0]


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    got = invoke(["store", *map(str, words)])
    out, err = capsys.readouterr()
    assert got == code, err
    return out, err


def run_json(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    out, _ = run(capsys, *words, "--json", code=code)
    (line,) = out.splitlines()
    return json.loads(line)


def test_stats(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "stats", root)
    assert {*found} == {"directory", "cluster", "node", "queues", "stores", "totals"}
    assert (found["cluster"], found["node"]) == ("c", "n1")
    assert found["totals"]["messages"] == 900 + 2 * 152
    small = next(each for each in found["queues"] if each["queue"] == SMALL)
    assert (small["messages"], small["folder"]) == (900, folder_name(SMALL))
    assert small["error"] is None
    assert [each["store"] for each in found["stores"]] == ["persistent", "transient"]

    out, err = run(capsys, "stats", root)
    assert err == ""
    rows = [line.split("\t") for line in out.splitlines()]
    assert ["-", "small", "900", "900", "0"] in [row[:5] for row in rows]
    assert "persistent" in [row[0] for row in rows]


def test_stats_fail_if_a_queue_can_not_be_read(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_version(queue_file(root, SMALL, "journal.jif"), 7)
    found = run_json(capsys, "stats", root, code=1)
    assert found["totals"]["queues_unreadable"] == 1
    assert found["totals"]["messages"] == 2 * 152
    errors = [each["error"] for each in found["queues"] if each["error"]]
    assert len(errors) == 1
    assert "has version 7" in errors[0]
    out, err = run(capsys, "stats", root, code=1)
    assert "\tunreadable: " in out
    assert err == "ringmq: 1 of 3 queues can't be read\n"


def test_verify_of_a_sound_directory(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "verify", root)
    assert found["sound"] is True
    assert found["faults"] == found["torn"] == found["notes"] == []
    assert found["messages"] == 900 + 2 * 152
    out, err = run(capsys, "verify", root)
    assert "sound                yes" in out
    assert err == ""


def test_verify_of_a_damaged_directory(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = queue_file(root, SMALL, "0.idx")
    hit = headers(segment)[1]
    flip(segment, hit.end - 1)
    (root / PERSISTENT / "1.rdq").unlink()
    found = run_json(capsys, "verify", root, code=3)
    assert found["sound"] is False
    assert found["messages_unreadable"] == 100 + 16
    name = str(segment.relative_to(root))
    first = next(fault for fault in found["faults"] if fault["file"] == name)
    assert (first["offset"], first["length"]) == (hit.offset, hit.end - hit.offset)
    assert {*first} == {"file", "offset", "length", "what", "queue", "name", "first", "last"}

    out, err = run(capsys, "verify", root, code=3)
    rows = [line.split("\t") for line in out.splitlines()]
    # The table has the first fault of each file, and the number of its other faults.
    (row,) = (row for row in rows if row[0] == name)
    assert (int(row[1]), int(row[-1])) == (hit.offset, 1)
    (row,) = (row for row in rows if row[0] == str(PERSISTENT / "1.rdq"))
    assert (int(row[1]), int(row[-1])) == (32, 3)
    assert err.startswith(f"ringmq: {root}: not sound, ")
    assert len(err.splitlines()) == 1


def test_verify_of_a_torn_tail(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = queue_file(root, SMALL, "journal.jif")
    os.truncate(journal, journal.stat().st_size - 3)
    found = run_json(capsys, "verify", root)
    assert found["sound"] is True
    assert found["torn_bytes"] == 49
    assert [each["length"] for each in found["torn"]] == [49]
    out, _ = run(capsys, "verify", root)
    assert "torn tail of" in out


def test_inspect(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = run_json(capsys, "inspect", root, "--limit", 2)
    assert len(files["files"]) == 2
    on_disk = [
        each for each in root.rglob("*.*") if each.suffix in (".jif", ".idx", ".rdq", ".map")
    ]
    assert files["files_total"] == len(on_disk)
    queue = run_json(capsys, "inspect", root, "--queue", LARGE, "--limit", 3)
    assert (len(queue["records"]), len(queue["live"]["ranges"])) == (3, 3)
    assert queue["records_total"] == sum(each["records"] for each in queue["files"])
    assert queue["live"]["messages"] == 152
    file = run_json(capsys, "inspect", root, "--file", PERSISTENT / "1.rdq")
    assert [each["details"]["references"] for each in file["records"]] == [2, 0, 0, 0, 2]
    assert file["summary"]["kind"] == "bodies"

    out, _ = run(capsys, "inspect", root, "--limit", 2)
    assert f"(2 of {len(on_disk)} files: see --limit)" in out
    out, _ = run(capsys, "inspect", root, "--queue", LARGE)
    assert "locations 21/1@3700" in out
    assert "op remove, ranges 4-15 20-31" in out
    out, _ = run(capsys, "inspect", root, "--file", root / PERSISTENT / "1.rdq")
    assert "references 2" in out


@pytest.mark.parametrize("command", ["stats", "verify", "inspect"])
def test_a_missing_or_foreign_directory_is_wrong_usage(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = run(capsys, command, tmp_path / "none", code=2)
    assert "does not exist" in err
    _, err = run(capsys, command, tmp_path, code=2)
    assert "is not a node's data directory" in err
    (tmp_path / "file").touch()
    _, err = run(capsys, command, tmp_path / "file", code=2)
    assert "is a file" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--queue", "none"], "there is no queue 'none'"),
        (["--file", "store.meta"], "is not a file of records"),
        (["--file", "/dev/zero"], "there is no file"),
        (["--file", "x", "--queue", "y"], "exclude each other"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_a_missing_queue_or_file_can_not_be_inspected(
    options: list[str], said: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run(capsys, "inspect", root, *options, code=2)
    assert out == ""
    assert said in err


@pytest.mark.parametrize("command", ["stats", "verify", "inspect"])
def test_a_directory_in_use_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(tmp_path, cluster_id="c", node="n1")
    try:
        out, err = run(capsys, command, tmp_path, code=1)
    finally:
        store.close()
    assert out == ""
    assert err == (
        f"ringmq: {tmp_path} is in use by process {os.getpid()}: "
        "stop that node, or look at a copy\n"
    )


def test_names_that_would_move_the_cursor_are_shown_harmless(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "\x1b[2J").touch()
    (root / os.fsdecode(b"\xff")).touch()
    found = run_json(capsys, "verify", root)
    assert [note.split(":")[0] for note in found["notes"]] == ["\\x1b[2J", "\\xff"]
    out, _ = run(capsys, "verify", root)
    assert "\x1b" not in out


def test_as_a_process(root: Path) -> None:
    flip(queue_file(root, SMALL, "0.idx"), 100)
    words = [sys.executable, "-m", "ringmq_node.cli", "store", "verify", str(root), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["sound"] is False
    # One line: progress is shown on terminals only.
    assert len(done.stderr.splitlines()) == 1
