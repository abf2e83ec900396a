"""`ringmq` as an operator calls it, in a process that is forked from a node's starter.

As a program of its own, a short command spends most of its time on imports. That the command line
is such a program is shown by `test_refused_start.py`, by the containers' tests and by those in
`node/tests/cli/`.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile

from commands import COMMAND_S_MAX, Ended
from node_starter import starter_of

# Whose starter it is: each cluster has a node of that name.
NODE = "a"


def ringmq(*words: str, namespace: str = "") -> Ended:
    """The command, run to its end, in a network namespace if one is named. Raises
    `subprocess.TimeoutExpired`, with it killed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = starter_of(NODE).start(
            words, out.fileno(), errors=errors.fileno(), namespace=namespace
        )
        try:
            code = process.wait(COMMAND_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(code, *texts)


async def ringmq_ended(*words: str) -> Ended:
    """The same, while the test's loop goes on."""
    return await asyncio.to_thread(ringmq, *words)


async def ringmq_succeeded(*words: str) -> str:
    """What the command prints; it has to end with 0."""
    command = await ringmq_ended(*words)
    assert command.exit_code == 0, f"{words}: {command.err or command.out}"
    return command.out
