"""Processes of the tests, each forked from a starter: a process that has imported their code.

A node's start is three quarters of a second of processor time, a command's half of one, and nearly
all of it is imports. The process tests start some hundreds of nodes, operators' commands and
clients. Forked, each is ready at a tenth of that. In all else it is as if a shell had started it:

* It is a process of its own with a pid, and runs its program to the end of the interpreter.
* Each node of a cluster has a starter of its own, so that the nodes' hash seeds differ. With the
  same seed, sets of strings would have one order in all replicas, and a state that depends on such
  an order would look equal on them (G5).
* A starter only imports. Threads, event loops and gRPC's objects don't survive a fork: a starter
  that has a second thread refuses to go on.

The command line as a program is what `test_refused_start.py`, the containers' tests and those in
`node/tests/cli/` start.

    python -m node_starter DESCRIPTOR PROGRAM    serves the other end of this socket

Imports of this module are a node's, too: none but Python's own.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

STARTER_S_MAX = 60.0
REQUEST_BYTES_MAX = 1 << 20
# Of each program, what its starter imports; the first module has its `main`. A node imports the
# last one once it has read its settings.
RINGMQ, CLIENT = "ringmq", "client"
MODULES = {
    RINGMQ: ("ringmq_node.cli", "ringmq_node.cli.app", "ringmq_node.running"),
    CLIENT: ("nemesis.inside",),
}
_CODE = struct.Struct("<i")
# From sched.h; `os.setns` is newer than the oldest Python here.
CLONE_NEWNET = 0x40000000


def enter_namespace(name: str) -> None:
    """The calling thread, and those that it starts from now on, are in this network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")


class NodeProcess:
    """As much of `subprocess.Popen` as a test needs, of a process that its starter waits for."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        # The starter writes the exit code there.
        self._ended = ended
        self.taking_its_code = threading.Lock()

    def poll(self) -> int | None:
        # A thread that waits for the end now is the one that takes the code.
        if self.returncode is None and self.taking_its_code.acquire(blocking=False):
            try:
                self._take_code(0.0)
            finally:
                self.taking_its_code.release()
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        with self.taking_its_code:
            if self.returncode is None:
                self._take_code(timeout_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
        return self.returncode

    def _take_code(self, timeout_s: float) -> None:
        if not select.select([self._ended], [], [], timeout_s)[0]:
            return
        code = self._ended.recv(_CODE.size)
        self._ended.close()
        if len(code) < _CODE.size:
            raise RuntimeError(f"the starter of process {self.pid} has ended before it")
        (self.returncode,) = _CODE.unpack(code)

    def send_signal(self, number: int) -> None:
        # As in `Popen`: an ended process' pid may be another's by now.
        if self.poll() is None:
            # It may have ended while another thread takes its code.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Starter:
    """The test's end of a starter. It imports beside the test until the first `start`."""

    def __init__(self, program: str) -> None:
        self._link, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "node_starter", str(other.fileno()), program],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._link.settimeout(STARTER_S_MAX)
        self._asking = threading.Lock()

    def start(
        self,
        words: Sequence[str],
        out: int,
        *,
        errors: int | None = None,
        source: int | None = None,
        namespace: str = "",
    ) -> NodeProcess:
        """Runs the program with these words, in a network namespace if one is named. Its output
        goes to the descriptor `out`, its errors, too, unless they have one; `source` is its input,
        which is empty without one."""
        request = {
            "words": words,
            "namespace": namespace,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
        }
        ended, its_end = socket.socketpair()
        with its_end, open(os.devnull, "rb") as nothing:
            line = json.dumps(request).encode() + b"\n"
            streams = [
                nothing.fileno() if source is None else source,
                out,
                out if errors is None else errors,
            ]
            # Commands are started in threads.
            with self._asking:
                sent = socket.send_fds(self._link, [line], [*streams, its_end.fileno()])
                self._link.sendall(line[sent:])
                answer = self._link.recv(_CODE.size)
        if not answer:
            raise RuntimeError(f"the starter has ended; its code: {self._process.wait()}")
        (pid,) = _CODE.unpack(answer)
        return NodeProcess(pid, ended)

    def close(self) -> None:
        """Ends the starter; its nodes are the test's to end."""
        self._link.close()

    def wait(self) -> None:
        self._process.wait(STARTER_S_MAX)


_starters: dict[tuple[str, str], Starter] = {}
_making_one = threading.Lock()


def starter_of(node: str, program: str = RINGMQ) -> Starter:
    """This process' starter for all lives of the nodes of that name, or of another program's."""
    with _making_one:
        if not _starters:
            atexit.register(_close_all)
        if (node, program) not in _starters:
            _starters[node, program] = Starter(program)
        return _starters[node, program]


def _close_all() -> None:
    for starter in _starters.values():
        starter.close()
    for starter in _starters.values():
        starter.wait()
    _starters.clear()


# --- in the starter's process ---


def serve(link: socket.socket) -> list[str] | None:
    """Forks a process for each request, and says how each ended. Returns the words of its program
    in such a process; None in the starter, once it has no test any more."""
    # Ctrl-C goes to all processes of a terminal. The test ends its nodes, and then this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    ends: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([link.fileno(), woken], [], [])
        if woken in readable:
            os.read(woken, 1024)
            _tell_ends(ends)
        if link.fileno() not in readable:
            continue
        line, descriptors, _, _ = socket.recv_fds(link, REQUEST_BYTES_MAX, 4)
        if not line:
            return None
        while not line.endswith(b"\n"):
            line += link.recv(REQUEST_BYTES_MAX)
        *streams, ended = descriptors
        # A thread that holds a lock is gone in the forked process, and the lock stays held.
        assert len(os.listdir("/proc/self/task")) == 1, "the starter has a second thread"
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for end in (link, *ends.values()):
                end.close()
            for descriptor in (woken, waker, ended):
                os.close(descriptor)
            return _become(json.loads(line), streams)
        for descriptor in streams:
            os.close(descriptor)
        ends[pid] = socket.socket(fileno=ended)
        link.sendall(_CODE.pack(pid))


def _tell_ends(ends: dict[int, socket.socket]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with ends.pop(pid) as end:
            try:
                end.sendall(_CODE.pack(os.waitstatus_to_exitcode(status)))
            except BrokenPipeError:
                continue  # The test has ended, and asks for no code.


def _become(request: dict[str, object], streams: list[int]) -> list[str]:
    """What `exec` and the words before a command do for a program of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words, environment = request["words"], request["environment"]
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(environment)
    if request["namespace"]:
        enter_namespace(str(request["namespace"]))
    return words


if __name__ == "__main__":
    # gRPC reads it when it is imported; `ringmq_node.cli.main` sets it before that, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    descriptor, program = sys.argv[1:]
    imported = [importlib.import_module(module) for module in MODULES[program]]
    found = serve(socket.socket(fileno=int(descriptor)))
    if found is not None:
        sys.argv = [program, *found]
        imported[0].main()
