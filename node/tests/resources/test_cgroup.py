"""Trees as kernels and container engines show them, in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringmq_node.resources import cgroup

MACHINE = 8_000_000 * 1024
NO_LIMIT_V1 = "9223372036854771712\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "34 25 0:31 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
CPU_MOUNT = "33 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"


def tree(root: Path, groups: str, mounts: str, **files: str) -> Path:
    """A root with these groups and mounts; `files`: the limits, by folder."""
    content = {
        "proc/meminfo": "MemTotal:        8000000 kB\nMemFree:          100 kB\n",
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts,
        **files,
    }
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def memory(root: Path, groups: str, mounts: str, files: dict[str, str]) -> int:
    return cgroup.memory_bytes(tree(root, groups, mounts, **files))


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        pytest.param(
            "0::/system.slice/ringmq.service\n",
            V2_MOUNT,
            {f"{V2}/system.slice/ringmq.service/memory.max": "1073741824\n"},
            1 << 30,
            id="v2, the group's own limit",
        ),
        pytest.param(
            "0::/a/b/c\n",
            V2_MOUNT,
            {
                f"{V2}/a/b/c/memory.max": "max\n",
                f"{V2}/a/b/memory.max": "3000\n",
                f"{V2}/a/memory.max": "2000\n",
            },
            2000,
            id="v2, the least of those above",
        ),
        pytest.param(
            "0::/\n", V2_MOUNT, {f"{V2}/memory.max": "5000\n"}, 5000, id="v2, a namespace"
        ),
        pytest.param(
            "0::/../other\n", V2_MOUNT, {f"{V2}/memory.max": "5000\n"}, 5000, id="v2, from outside"
        ),
        pytest.param("0::/\n", V2_MOUNT, {}, MACHINE, id="v2, the top has no limit file"),
        pytest.param("0::/a\n", V2_MOUNT, {f"{V2}/a/memory.max": "max\n"}, MACHINE, id="v2, max"),
        pytest.param(
            "0::/a\n", V2_MOUNT, {f"{V2}/a/memory.max": "99999999999999\n"}, MACHINE, id="v2, more"
        ),
        pytest.param(
            "4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n0::/\n",
            CPU_MOUNT + V1_MOUNT,
            {f"{V1}/docker/1/memory.limit_in_bytes": "4096\n"},
            4096,
            id="v1, the group's own limit",
        ),
        pytest.param(
            "4:cpu,memory:/pods/1/2\n",
            V1_MOUNT,
            {
                f"{V1}/pods/1/2/memory.limit_in_bytes": NO_LIMIT_V1,
                f"{V1}/pods/1/memory.limit_in_bytes": "7000\n",
                f"{V1}/memory.limit_in_bytes": NO_LIMIT_V1,
            },
            7000,
            id="v1, that of the pod",
        ),
        pytest.param(
            "4:memory:/docker/1\n",
            V1_MOUNT.replace(" / /", " /docker/1 /"),
            {f"{V1}/memory.limit_in_bytes": "6000\n"},
            6000,
            id="v1, a container that sees its own part",
        ),
        pytest.param(
            "4:memory:/docker/1/sub\n",
            V1_MOUNT.replace(" / /", " /docker/1 /"),
            {f"{V1}/memory.limit_in_bytes": "6000\n", f"{V1}/sub/memory.limit_in_bytes": "50\n"},
            50,
            id="v1, a group of the container's own",
        ),
        pytest.param(
            "4:memory:/not/shown\n",
            V1_MOUNT,
            {f"{V1}/memory.limit_in_bytes": NO_LIMIT_V1},
            MACHINE,
            id="v1, no limit is a number",
        ),
        pytest.param(
            "4:memory:/a\n0::/b\n",
            V1_MOUNT + V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
            {
                f"{V1}/a/memory.limit_in_bytes": "900\n",
                "sys/fs/cgroup/unified/b/cgroup.procs": "1\n",
            },
            900,
            id="both, version 1 has the memory",
        ),
        pytest.param(
            "0::/a\n",
            V2_MOUNT.replace("/sys/fs/cgroup", "/odd\\040place"),
            {"odd place/a/memory.max": "800\n"},
            800,
            id="a mount with a blank in its name",
        ),
        pytest.param(
            "0::/a\n", V2_MOUNT, {f"{V2}/a/memory.max": "lots\n"}, MACHINE, id="no number"
        ),
        pytest.param("0::/a\n", V2_MOUNT, {f"{V2}/a/memory.max": "0\n"}, MACHINE, id="nothing"),
        pytest.param("0::/a\n", V2_MOUNT, {f"{V2}/a/memory.max": "-1\n"}, MACHINE, id="less"),
        pytest.param("garbage\n::\n0:\n", "a b - c\n- cgroup2\n", {}, MACHINE, id="garbage"),
        pytest.param("", "", {}, MACHINE, id="no groups"),
        pytest.param("0::/a\n", "", {f"{V2}/a/memory.max": "5\n"}, MACHINE, id="not mounted"),
    ],
)
def test_memory_that_the_process_may_use(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], expected: int
) -> None:
    assert memory(tmp_path, groups, mounts, files) == expected


@pytest.mark.parametrize("absent", ["proc/self/cgroup", "proc/self/mountinfo"])
def test_without_proc_files_the_machine_counts(tmp_path: Path, absent: str) -> None:
    root = tree(tmp_path, "0::/a\n", V2_MOUNT, **{f"{V2}/a/memory.max": "5000\n"})
    (root / absent).unlink()
    assert cgroup.memory_bytes(root) == MACHINE


def test_a_limit_that_is_a_folder_counts_as_none(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/a\n", V2_MOUNT)
    (root / V2 / "a" / "memory.max").mkdir(parents=True)
    assert cgroup.memory_bytes(root) == MACHINE


def test_without_meminfo_the_c_library_is_asked(tmp_path: Path) -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert cgroup.memory_bytes(tmp_path) == pages


def test_resident_memory(tmp_path: Path) -> None:
    root = tree(tmp_path, "", "", **{"proc/self/statm": "9000 1234 500 1 0 700 0\n"})
    assert cgroup.resident_bytes(root) == 1234 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("content", ["", "1\n", "a b\n"])
def test_resident_memory_that_can_not_be_read(tmp_path: Path, content: str) -> None:
    root = tree(tmp_path, "", "", **{"proc/self/statm": content})
    with pytest.raises(OSError, match="statm"):
        cgroup.resident_bytes(root)


def test_this_process() -> None:
    assert 1 << 20 < cgroup.resident_bytes() < cgroup.memory_bytes()
