"""Generates the Python code of `proto/`, or checks that the checked-in code is fresh.

    python proto/generate.py            writes the generated code
    python proto/generate.py --check    exit code 1 and a list if it differs

The versions of the generator are pinned exactly in `pyproject.toml`, so the
comparison is byte for byte.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
BIN = Path(sys.executable).parent

# The Python package, as a path -> the folder of its .proto files, the source root of its code.
# Inside .proto files, imports are written with the package's path.
TARGETS = {
    "ringmq/v1": (PROTO / "ringmq" / "v1", ROOT / "client" / "src"),
    "ringmq_gm/registry/etcdpb": (PROTO / "etcd", ROOT / "gm" / "src"),
}


def generate(package: str, folder: Path, out: Path) -> list[Path]:
    """Generates one package below `out`; returns the files, relative to `out`."""
    sources = sorted(folder.glob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={package}={folder}",
        f"--proto_path={well_known}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--plugin=protoc-gen-mypy={BIN / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={BIN / 'protoc-gen-mypy_grpc'}",
        f"--mypy_out=quiet:{out}",
        # Stubs for both kinds of channels would have a type variable for each method, and mypy's
        # time would double with each of them.
        f"--mypy_grpc_out=quiet,only_async:{out}",
        *map(str, sources),
    ]
    if protoc.main(arguments) != 0:
        sys.exit(f"protoc failed on {package}")
    (out / package / "__init__.py").write_text('"""Generated from `proto/` by `make proto`."""\n')
    # A file without a service has no use for the module of its stubs.
    for source in sources:
        if "\nservice " not in source.read_text():
            for suffix in ("_pb2_grpc.py", "_pb2_grpc.pyi"):
                (out / package / f"{source.stem}{suffix}").unlink(missing_ok=True)
    return sorted(path.relative_to(out) for path in (out / package).iterdir() if path.is_file())


def stale_files() -> list[str]:
    """The checked-in files that differ from the code that `proto/` gives now."""
    stale: list[str] = []
    for package, (folder, root) in TARGETS.items():
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary)
            wanted = generate(package, folder, out)
            for path in wanted:
                target = root / path
                if not target.exists() or target.read_bytes() != (out / path).read_bytes():
                    stale.append(str(target.relative_to(ROOT)))
            stale += [
                f"{found.relative_to(ROOT)} (no source)"
                for found in sorted((root / package).glob("*_pb2*"))
                if found.relative_to(root) not in wanted
            ]
    return stale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        for package, (folder, root) in TARGETS.items():
            for old in (root / package).glob("*_pb2*"):
                old.unlink()
            generate(package, folder, root)
        return
    stale = stale_files()
    if stale:
        sys.exit("generated code is stale, run `make proto`:\n  " + "\n  ".join(stale))


if __name__ == "__main__":
    main()
