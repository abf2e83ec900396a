"""Browsed pieces as Arrow: what the columns hold, and the refusal where pyarrow is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import run

from ringmq.reading.columns import rows_of, schema
from ringmq.reading.split import SplitAnswer
from ringmq.v1 import reader_pb2 as wire
from ringmq_node.doors.grpc import arrow
from ringmq_node.doors.grpc.reader import piece_as_arrow, piece_joined
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.block import Block
from ringmq_node.queue.run import Run
from ringmq_node.replica.positions import BrowsedPiece, Numbering


def piece(*runs: Run) -> BrowsedPiece:
    return BrowsedPiece(0, 100, runs, (), Numbering("id", 0))


RUNS = (
    Run(3, Block.of([b"one", b"\xff" * 9]), transient=False, redelivered=True),
    Run(7, Block.of([b"a", b"b"], [b"shared"]), transient=True, redelivered=False),
    Run(9, Block.of([b"", b"d"], [b"p", b"q"]), transient=False, redelivered=False),
)


def columns(body_bytes_max: int | None, runs: tuple[Run, ...] = RUNS) -> dict[str, list[Any]]:
    data = b"".join(arrow.encode(pyarrow, piece(*runs), body_bytes_max))
    with pyarrow.ipc.open_stream(data) as stream:
        table = stream.read_all()
    table.validate(full=True)
    assert table.column(0).num_chunks == 1
    assert table.schema.equals(schema(pyarrow))
    found: dict[str, list[Any]] = table.to_pydict()
    return found


def joined(body_bytes_max: int | None, runs: tuple[Run, ...] = RUNS) -> dict[str, list[Any]]:
    """The columns that a client makes of messages whose bodies came together."""
    answer = SplitAnswer.from_bytes(bytes(piece_joined(piece(*runs), body_bytes_max)))
    # As protobuf reads it.
    plain = wire.BrowseResponse.FromString(bytes(piece_joined(piece(*runs), body_bytes_max)))
    assert bytes(answer.bodies) == plain.bodies
    plain.ClearField("bodies")
    assert answer.head == plain
    rows = rows_of(pyarrow, answer.head, answer.bodies, body_bytes_max)
    rows.validate(full=True)
    assert rows.schema.equals(schema(pyarrow))
    found: dict[str, list[Any]] = rows.to_pydict()
    return found


def test_each_message_has_its_row() -> None:
    assert columns(None) == {
        "position": [3, 4, 7, 8, 9, 10],
        "body": [b"one", b"\xff" * 9, b"a", b"b", b"", b"d"],
        "body_size": [3, 9, 1, 1, 0, 1],
        "redelivered": [True, True, False, False, False, False],
        "persistent": [True, True, False, False, True, True],
        "properties": [None, None, b"shared", b"shared", b"p", b"q"],
    }
    assert arrow.encode(pyarrow, piece(), None) == []
    assert joined(None) == columns(None)
    empty = SplitAnswer.from_bytes(bytes(piece_joined(piece(), None)))
    assert rows_of(pyarrow, empty.head, empty.bodies, None) is None


def test_bodies_that_are_cut_or_left_out_keep_their_sizes() -> None:
    assert columns(2)["body"] == [b"on", b"\xff\xff", b"a", b"b", b"", b"d"]
    assert columns(0)["body"] == [None] * 6
    assert columns(0)["body_size"] == columns(None)["body_size"]
    assert [joined(most) for most in (0, 2, 1 << 40)] == [columns(0), columns(2), columns(None)]


def test_an_answer_as_arrow_is_the_message_that_protobuf_would_make() -> None:
    data = bytes(piece_as_arrow(pyarrow, piece(*RUNS), None))
    plain = wire.BrowseResponse.FromString(data)
    answer = SplitAnswer.from_bytes(data)
    assert bytes(answer.arrow) == plain.arrow == b"".join(arrow.encode(pyarrow, piece(*RUNS), None))
    assert (answer.first, answer.end, answer.numbering) == (0, 100, plain.numbering)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.lists(st.binary(max_size=12), min_size=1, max_size=20),
            st.booleans(),
            st.booleans(),
            st.sampled_from(["none", "shared", "empty", "each"]),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_many_runs_are_as_their_messages_one_by_one(
    drawn: list[tuple[int, list[bytes], bool, bool, str]],
) -> None:
    """With holes between them, and what they differ in on either side of a byte of bits."""
    runs: list[Run] = []
    rows: list[tuple[Any, ...]] = []
    at = 0
    for hole, bodies, transient, redelivered, kind in drawn:
        at += hole
        own = [b"p%d" % number for number in range(len(bodies))]
        found = {"none": [], "shared": [b"s"], "empty": [b""], "each": own}[kind]
        runs.append(Run(at, Block.of(bodies, found), transient, redelivered))
        shared = found[0] if found else None
        each = found if len(found) == len(bodies) else [shared] * len(bodies)
        for number, (body, mine) in enumerate(zip(bodies, each, strict=True)):
            rows.append((at + number, body, len(body), redelivered, not transient, mine))
        at += len(bodies)
    names = ["position", "body", "body_size", "redelivered", "persistent", "properties"]
    expected = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    assert columns(None, tuple(runs)) == expected
    cut = [body[:3] for body in expected["body"]]
    assert columns(3, tuple(runs)) == expected | {"body": cut}
    assert columns(0, tuple(runs)) == expected | {"body": [None] * len(rows)}
    for most in (None, 3, 0):
        assert joined(most, tuple(runs)) == columns(most, tuple(runs))


def test_a_node_without_pyarrow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(arrow, "import_module", missing)
    with pytest.raises(BrokerError, match="node a has no pyarrow, so it can't") as refused:
        run(arrow.load("a"))
    assert refused.value.reason is Reason.NOT_SUPPORTED


ENCODES = """
import asyncio, sys
from ringmq_node.doors.grpc import arrow
from ringmq_node.queue.block import Block
from ringmq_node.queue.run import Run
from ringmq_node.replica.positions import BrowsedPiece, Numbering
pyarrow = asyncio.run(arrow.load("a"))
before = set(sys.modules)
run = Run(3, Block.of([b"one", b"two"]), transient=False, redelivered=False)
for body_bytes_max in (None, 0, 1):
    assert arrow.encode(pyarrow, BrowsedPiece(0, 9, (run,), (), Numbering("id", 0)), body_bytes_max)
print(sorted(set(sys.modules) - before))
"""


def test_nothing_is_imported_by_the_loop_that_encodes() -> None:
    """Arrow imports pandas for the first value that Python gives it, which took half a second."""
    done = subprocess.run(
        [sys.executable, "-c", ENCODES], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
