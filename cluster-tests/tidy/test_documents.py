"""The documents name files, classes and functions; each of these names has to exist.

A page that sends a newcomer to a moved file is worse than no page, and nothing else notices
a move. Checked in every tracked Markdown file, outside of fenced blocks:

    `node/src/ringmq_node/config.py`               a file or folder, from the root of the project
    `node/src/ringmq_node/config.py::NodeConfig`   with a class, function, method or constant
    [text](page.md#a-section)                      a section of a page
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "build" for part in path.relative_to(ROOT).parts)
)
# Only a name below one of these folders is a path from the root; `messages/1.rdq` is not.
FOLDERS = "base|bench|client|cluster-tests|deploy|docs|gm|node|pipeline|proto"
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)(?:::([\w.]+))?`")
# Stands for a name of the reader's own.
PLACEHOLDER = "NAME"
LINK = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose_of(path: Path) -> str:
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def exists(name: str) -> bool:
    """A path, or a result of the benchmark without its ending."""
    path = ROOT / name
    return path.exists() or any(path.parent.glob(f"{path.name}.*"))


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Classes, functions and constants; of classes also `Class.method` and `Class.field`."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            found.add(prefix + node.name)
            found |= names_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(prefix + node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@cache
def names_of(file: str) -> set[str]:
    return names_in(ast.parse((ROOT / file).read_text()).body)


def anchors_of(path: Path) -> set[str]:
    """The sections of a page, as the addresses that GitHub gives them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_named_files_and_symbols_exist(path: Path) -> None:
    for file, symbol in NAMED.findall(prose_of(path)):
        assert PLACEHOLDER in file or exists(file), f"{file} is not there"
        if symbol:
            assert symbol in names_of(file), f"{file}::{symbol}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_to_sections(path: Path) -> None:
    for target, anchor in LINK.findall(prose_of(path)):
        page = (path.parent / target) if target else path
        assert anchor in anchors_of(page), f"{name_of(page)} has no section #{anchor}"


@pytest.mark.parametrize("index", ["docs/README.md", "docs/decisions/README.md"])
def test_an_index_lists_every_page_of_its_folder(index: str) -> None:
    path = ROOT / index
    listed = set(re.findall(r"\]\(([^)#/]+\.md)", path.read_text()))
    assert {page.name for page in path.parent.glob("*.md")} - listed == {"README.md"}


def test_every_scenario_of_others_has_a_test() -> None:
    """A row of docs/scenarios.md without one says that the feature isn't there *yet*."""
    rows = [
        line
        for line in (ROOT / "docs/scenarios.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith(("| case", "| report", "|---"))
    ]
    assert len(rows) >= 17
    for row in rows:
        case, here, tests = (cell.strip() for cell in row[1:-1].split(" |"))
        named = [file for file, symbol in NAMED.findall(tests) if symbol.startswith("test_")]
        assert named or here.endswith(" yet"), f"no test for: {case}"
