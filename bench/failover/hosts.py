"""The hosts of a run, and what a host's link has carried."""

from __future__ import annotations

import json
import subprocess

from nemesis.network import Network


def received_bytes(network: Network, host: str) -> int:
    """All that the host's only link has taken in since it was made, headers included."""
    shown = subprocess.run(
        [*network.inside(host), "ip", "-stats", "-json", "link", "show", "eth0"],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return int(json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"])
