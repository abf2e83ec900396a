"""What the layout promises, read off the sources.

Which way imports point, between packages and between the rooms of the node; that no modules know
each other in a circle; which modules are pure; that a class name has one meaning; how long modules
and functions are; that the documents' links, and the tests that they name, exist.

An import counts wherever it stands, also under `if TYPE_CHECKING`: a module that names another
one's types can't be read without it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "ringmq_base": ROOT / "base/src/ringmq_base",
    "ringmq_wire": ROOT / "wire/src/ringmq_wire",
    "ringmq": ROOT / "client/src/ringmq",
    "ringmq_gm": ROOT / "gm/src/ringmq_gm",
    "ringmq_node": ROOT / "node/src/ringmq_node",
    "ringmq_pipeline": ROOT / "pipeline/src/ringmq_pipeline",
    "pyspark_ringmq": ROOT / "pipeline/src/pyspark_ringmq",
    "pyspark_ringmq_store": ROOT / "pipeline/src/pyspark_ringmq_store",
}
# What a package may import of the others. Dependencies point one way.
ALLOWED = {
    "ringmq_base": set[str](),
    # A transport for anybody: it knows nothing of ours.
    "ringmq_wire": set[str](),
    "ringmq": {"ringmq_base", "ringmq_wire"},
    "ringmq_gm": {"ringmq_base", "ringmq_wire"},
    "ringmq_node": {"ringmq_base", "ringmq_wire", "ringmq", "ringmq_gm"},
    # A client like any other; jobs name the data sources by their formats alone.
    "ringmq_pipeline": {"ringmq", "ringmq_base"},
    "pyspark_ringmq": {"ringmq", "ringmq_pipeline"},
    # It reads a node's files with the node's own definitions of them.
    "pyspark_ringmq_store": {"ringmq_base", "ringmq_node", "ringmq_pipeline"},
}
# The rooms of the node, upper floors first: a room imports only rooms that come after it.
ROOMS = (
    "cli",
    "running",
    "node",
    "opening",
    "shortage",
    "supervisor",
    "identity",
    "errors",
    "config",
    "doors",
    "broker",
    "replica",
    "storage",
    "resources",
    "queue",
    "model",
)
# Rooms that know no protocol: below the doors there is neither gRPC nor protobuf nor the client.
WITHOUT_PROTOCOL = ("broker", "replica", "storage", "resources", "queue", "model")
PROTOCOL = {"grpc", "google", "ringmq"}
# A core gets time, chance and I/O from its caller, or it can't be replayed.
IMPURE = {"asyncio", "grpc", "os", "random", "socket", "subprocess", "threading", "time", "uvloop"}
PURE_ROOMS = (
    PACKAGES["ringmq"] / "publishing/answers.py",
    PACKAGES["ringmq"] / "publishing/tickets.py",
    PACKAGES["ringmq"] / "publishing/pending.py",
    PACKAGES["ringmq"] / "publishing/flights.py",
    PACKAGES["ringmq"] / "publishing/core.py",
    PACKAGES["ringmq"] / "consuming/settling.py",
    PACKAGES["ringmq_gm"] / "core",
    PACKAGES["ringmq_node"] / "queue",
    PACKAGES["ringmq_node"] / "model",
)
# How a module's docstring says that it is one: "Pure." or "Pure: ...", or "without I/O".
SAYS_PURE = re.compile(r"\bPure[.:;]|\bwithout I/O\b|\bas pure state\b|\bpure function\b")
# Exceptions: names that mean the same notion on two sides of a wire.
SAME_NOTION = {
    # Spark finds a data source by this name.
    "DefaultSource",
    # How the node describes them, and how its Python client does.
    "BlockReason",
    "QueueMode",
    "QueueInfo",
    "QueueStorage",
    "NodeInfo",
    "ConnectionInfo",
    "ConsumerInfo",
    "ReplicaInfo",
    "ClusterStatus",
    "Location",
    "Numbering",
    "PositionStat",
    "CountedRange",
    "AcknowledgedBelow",
    "QueueLease",
    "BrowseSource",
    "StoreNumbers",
    "Policy",
    "Mirrors",
    "SyncMode",
    "MasterLocator",
    "ForcedPromotion",
    "ApplyTo",
    "Overflow",
    "QueueRules",
    "Death",
    "SyncPhase",
    "Difference",
    "DifferenceKind",
    "MasterMove",
    # How the view keeps the decision, and how the client is told of it.
    "AcceptedLoss",
    # How the storage says it to the node, and how the node's client is told.
    "DiskFullError",
    "StoreFailedError",
}
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500


def sources(package: str) -> list[Path]:
    generated = re.compile(r"_pb2(_grpc)?\.py$")
    return [
        path for path in sorted(PACKAGES[package].rglob("*.py")) if not generated.search(path.name)
    ]


ALL_SOURCES = [path for package in PACKAGES for path in sources(package)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    """`ringmq_node.broker.cluster`; a package is its `__init__`."""
    package = next(name for name, root in PACKAGES.items() if path.is_relative_to(root))
    parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


MODULES = {module_name(path): path for path in ALL_SOURCES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """The full names that a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                # `from package import module` names the module, not the package.
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
    return frozenset(found)


@cache
def top_levels(path: Path) -> frozenset[str]:
    return frozenset(name.split(".")[0] for name in imports(path))


@cache
def functions(path: Path) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    return tuple(
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


# --- which way imports point ---


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    others = set(PACKAGES) - {package} - ALLOWED[package]
    for path in sources(package):
        assert not top_levels(path) & others, name_of(path)


def room_of(module: str) -> str | None:
    """None for modules outside the node, and for the node's own package."""
    package, _, rest = module.partition(".")
    return rest.split(".")[0] if package == "ringmq_node" and rest else None


def test_every_module_of_the_node_is_in_a_room_that_has_a_floor() -> None:
    rooms = {room_of(module_name(path)) for path in sources("ringmq_node")} - {None}
    assert rooms == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_downward(room: str) -> None:
    above = set(ROOMS[: ROOMS.index(room)])
    for module, path in MODULES.items():
        if room_of(module) == room:
            up = {name for name in imports(path) if room_of(name) in above}
            assert not up, f"{module} imports upward: {sorted(up)}"


@pytest.mark.parametrize("room", WITHOUT_PROTOCOL)
def test_rooms_below_the_doors_know_no_protocol(room: str) -> None:
    for module, path in MODULES.items():
        if room_of(module) == room:
            assert not top_levels(path) & PROTOCOL, module


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected sets of more than one node (Tarjan 1972, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []
    for start in sorted(edges):
        work = [(start, iter(sorted(edges[start])))] if start not in index else []
        while work:
            node, rest = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            for other in rest:
                if other not in index:
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = set(stack[stack.index(node) :])
                    del stack[stack.index(node) :]
                    if len(group) > 1:
                        found.append(group)
    return found


def test_circles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert circles(edges) == [{"b", "c"}]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_modules_do_not_know_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        edges[module] = {name for name in imports(path) if name in MODULES and name != module}
    assert circles(edges) == []


# --- purity ---


def says_pure(path: Path) -> bool:
    # Every worker of a test run collects this module, and to parse all sources takes seconds: only
    # files that have the words anywhere are parsed.
    if not SAYS_PURE.search(path.read_text()):
        return False
    return bool(SAYS_PURE.search(ast.get_docstring(tree_of(path)) or ""))


PURE = [
    path
    for path in ALL_SOURCES
    if any(path.is_relative_to(room) for room in PURE_ROOMS)
    # A package's docstring speaks of its modules.
    or (path.name != "__init__.py" and says_pure(path))
]


def test_modules_that_say_they_are_pure_are_found() -> None:
    names = {module_name(path) for path in PURE}
    assert {
        "ringmq.publishing.core",
        "ringmq_gm.core.member",
        "ringmq_gm.links.detector",
        "ringmq_node.broker.placement",
        "ringmq_node.queue.master",
        "ringmq_node.replica.catchup",
        "ringmq_node.resources.memory",
        "ringmq_node.storage.queue.paging",
    } <= names


def modules_behind(path: Path) -> Iterable[Path]:
    """The file, and all modules of ours that it imports, directly or not."""
    seen = {path}
    todo = [path]
    while todo:
        for name in imports(todo.pop()):
            other = MODULES.get(name)
            if other is not None and other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_pure_module_imports_nothing_impure(path: Path) -> None:
    for behind in modules_behind(path):
        assert not top_levels(behind) & IMPURE, f"{name_of(path)} through {name_of(behind)}"


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_pure_module_knows_no_wire_message(path: Path) -> None:
    """So that any shell can use it: another door, or a node where now there is a client."""
    for behind in modules_behind(path):
        wire = {name for name in imports(behind) if name.startswith(("google.", "ringmq.v1"))}
        assert not wire, f"{name_of(path)} through {name_of(behind)}"


# --- names and sizes ---


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in ALL_SOURCES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(path))
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in SAME_NOTION} == {}


def test_modules_are_short() -> None:
    lines = {name_of(path): path.read_text().count("\n") for path in ALL_SOURCES}
    long = {name: count for name, count in lines.items() if count > MODULE_LINES_MAX}
    assert long == {}


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
