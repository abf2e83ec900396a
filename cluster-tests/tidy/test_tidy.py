"""What the layout promises, read off the sources: which way imports point, which modules
are pure, how long functions are, and that the documents' links lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "ringmq_base": ROOT / "base/src/ringmq_base",
    "ringmq": ROOT / "client/src/ringmq",
    "ringmq_gm": ROOT / "gm/src/ringmq_gm",
    "ringmq_node": ROOT / "node/src/ringmq_node",
}
# What a package may import of the others. Dependencies point one way.
ALLOWED = {
    "ringmq_base": set[str](),
    "ringmq": {"ringmq_base"},
    "ringmq_gm": {"ringmq_base"},
    "ringmq_node": {"ringmq_base", "ringmq", "ringmq_gm"},
}
# A core gets time, chance and I/O from its caller, or it can't be replayed.
IMPURE = {"asyncio", "grpc", "os", "random", "socket", "subprocess", "threading", "time"}
CORES = [
    *sorted((PACKAGES["ringmq_gm"] / "core").glob("*.py")),
    *(PACKAGES["ringmq_gm"] / f"links/{name}.py" for name in ("detector", "outbox", "wire")),
    *sorted((PACKAGES["ringmq_node"] / "queue").glob("*.py")),
    *(PACKAGES["ringmq_node"] / f"resources/{name}.py" for name in ("limits", "memory", "disk")),
    PACKAGES["ringmq_node"] / "replica/catchup.py",
    PACKAGES["ringmq"] / "errors.py",
    *(
        PACKAGES["ringmq"] / f"publishing/{name}.py"
        for name in ("tickets", "pending", "flights", "core")
    ),
    PACKAGES["ringmq"] / "consuming/settling.py",
    PACKAGES["ringmq_base"] / "ranges.py",
    PACKAGES["ringmq_base"] / "limits.py",
    PACKAGES["ringmq_base"] / "logs.py",
]
FUNCTION_LINES_MAX = 70
# Few modules are longer than the first, none than the second.
MODULE_LINES_USUAL = 500
MODULE_LINES_MAX = 700
LONG_MODULES_MAX = 7


def sources(package: str) -> list[Path]:
    generated = re.compile(r"_pb2(_grpc)?\.py$")
    return [
        path for path in sorted(PACKAGES[package].rglob("*.py")) if not generated.search(path.name)
    ]


ALL_SOURCES = [path for package in PACKAGES for path in sources(package)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, at any depth of its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    others = set(PACKAGES) - {package} - ALLOWED[package]
    for path in sources(package):
        assert not imported(path) & others, name_of(path)


@pytest.mark.parametrize("path", CORES, ids=name_of)
def test_core_imports_nothing_impure(path: Path) -> None:
    assert not imported(path) & IMPURE


def test_modules_are_short() -> None:
    lines = {name_of(path): path.read_text().count("\n") for path in ALL_SOURCES}
    long = {name: count for name, count in lines.items() if count > MODULE_LINES_USUAL}
    assert len(long) <= LONG_MODULES_MAX, long
    assert max(lines.values()) <= MODULE_LINES_MAX, long


@pytest.mark.parametrize("path", ALL_SOURCES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    for function in functions(path):
        size = (function.end_lineno or function.lineno) - function.lineno + 1
        assert size <= FUNCTION_LINES_MAX, f"{function.name}: {size} lines"


DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "build" for part in path.relative_to(ROOT).parts)
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_of_documents_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (path.parent / target).exists(), f"{target} is not there"


def test_tests_named_as_evidence_exist() -> None:
    """`docs/guarantees.md` names the test that shows each guarantee."""
    text = (ROOT / "docs/guarantees.md").read_text()
    named = re.findall(r"`([\w/.-]+\.py)(?:::(\w+))?`", text)
    assert named
    for file, test in named:
        path = ROOT / file
        assert path.exists(), file
        if test:
            assert any(f.name == test for f in functions(path)), f"{file}::{test}"
