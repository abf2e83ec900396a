"""Tests run coroutines on the product's event loop: only `loops` in base/tests/support makes one.

`asyncio.run` takes asyncio's own loop, on which no node runs. While the tests did so, an
AttributeError that only uvloop raises tore down links in every running node, and no test failed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HELPER = ROOT / "base/tests/support/loops.py"
# A loop whose clock the test moves. uvloop keeps its clock in C, where no test can reach it.
BY_HAND = ROOT / "node/tests/storage/engine/hand.py"
MAKES_A_LOOP = {
    "run",
    "Runner",
    "new_event_loop",
    "get_event_loop",
    "set_event_loop",
    "set_event_loop_policy",
    "SelectorEventLoop",
    "EventLoop",
    "ProactorEventLoop",
}
# A file without any of these words makes no loop, and needn't be parsed.
MAY_MAKE_A_LOOP = re.compile(
    rf"\basyncio\s*\.\s*(?:{'|'.join(sorted(MAKES_A_LOOP))})\b|\bfrom\s+asyncio\b|\buvloop\b"
)
TESTS = [
    path
    for place in (
        "base/tests",
        "wire/tests",
        "client/tests",
        "gm/tests",
        "node/tests",
        "pipeline/tests",
        "cluster-tests",
        "bench/tests",
    )
    for path in sorted((ROOT / place).rglob("*.py"))
    if path not in (HELPER, BY_HAND)
]


def loops_made(source: str) -> Iterator[str]:
    """Each `asyncio.run` and its like, however it is spelled, and each import of uvloop."""
    if not MAY_MAKE_A_LOOP.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "asyncio" and node.attr in MAKES_A_LOOP:
                yield f"line {line}: asyncio.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncio"):
            for alias in node.names:
                if alias.name in MAKES_A_LOOP:
                    yield f"line {line}: from {node.module} import {alias.name}"
        elif isinstance(node, ast.Import) and "uvloop" in {alias.name for alias in node.names}:
            yield f"line {line}: import uvloop"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_test_makes_no_loop_of_its_own(path: Path) -> None:
    assert not list(loops_made(path.read_text())), "call `run` or `new_loop` of `loops` instead"


@pytest.mark.parametrize(
    "source",
    ["asyncio.run(main())", "asyncio.Runner()", "from asyncio import run", "import uvloop"],
)
def test_a_loop_of_its_own_is_seen(source: str) -> None:
    assert list(loops_made(source))
