"""Commands that a test runs and waits for, while its loop goes on.

By `subprocess` in a thread, never by the loop: uvloop forks there, and a fork runs the handlers of
every library in the test's process. gRPC's has been seen to wait for good, once in some thousand
forks, in the child before its exec. The loop then waits for the child, in C and with the
interpreter's lock, where no time-out of the test reaches it. `subprocess` uses vfork, which runs no
handlers.
"""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass

# A command that takes longer is killed, and its test fails.
COMMAND_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command said, and how it ended."""

    exit_code: int
    out: str
    err: str


async def ended(*words: object, timeout_s: float = COMMAND_S_MAX) -> Ended:
    """Runs the command to its end. Raises `subprocess.TimeoutExpired`, with it killed."""
    command = [str(word) for word in words]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, check=False, timeout=timeout_s
    )
    return Ended(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


async def succeeded(*words: object, timeout_s: float = COMMAND_S_MAX) -> str:
    """What the command prints; it has to end with 0."""
    command = await ended(*words, timeout_s=timeout_s)
    assert command.exit_code == 0, f"{words}: {command.err or command.out}"
    return command.out
