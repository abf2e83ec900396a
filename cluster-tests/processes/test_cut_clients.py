"""Clients cut off from one node, which becomes their master again: real cuts, a real kernel.

Nobody but the clients notices the cut, and the other nodes relay for them. Once the way is open,
their streams mustn't go over the connection that was cut. On either end, TCP sends what got lost
again after 0.2, 0.6, 1.4, 3.0, 6.2 and 12.6 s: until the next of these moments the connection
brings nothing, and the way is open in vain.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from nemesis import Cluster
from nemesis.network import Network
from nemesis.on_hosts import play
from nemesis.programs import Program, both_begun, longest_gap_s
from waiting import TooLateError

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

# Just longer than until the moment at 6.2 s.
CUT_FOR_S = 7.0
# It was 4.3 s and more, for what is left of 12.6 s. To the letter on any machine.
WITHOUT_SERVICE_S_MAX = 3.0
TOTAL, BATCH_MESSAGES, DEADLINE_S, CONSUMED_FOR_S = "3300", "5", "40", "20"


def test_clients_that_were_cut_off_take_a_new_connection(tmp_path: Path) -> None:
    play(tmp_path, ("client",), clients_cut_off)


async def clients_cut_off(cluster: Cluster, network: Network) -> None:
    seeds = ",".join(cluster.addresses[name] for name in ("a", "b", "c"))
    master, mirror, _ = Program(network, "client", "declare", seeds, "q").result(20)
    publisher = Program(
        network, "client", "publish", seeds, "q", "tag", TOTAL, DEADLINE_S, BATCH_MESSAGES
    )
    consumer = Program(network, "client", "consume", seeds, "q", CONSUMED_FOR_S)
    clients = [publisher, consumer]
    try:
        both_begun(publisher, consumer)
        await asyncio.sleep(1.5)
        network.cut("client", master)
        await asyncio.sleep(CUT_FOR_S)
        network.heal("client", master)
        healed_at = time.monotonic()
        Program(network, "client", "promote", seeds, "q", mirror, master).result(20)
        published, came_at = (client.result(90) for client in clients)
    finally:
        for client in clients:
            client.end()
    assert not published["errors"]
    for what, moments in (("confirms", published["confirmed_at"]), ("deliveries", came_at)):
        assert max(moments) > healed_at + WITHOUT_SERVICE_S_MAX
        without_s = longest_gap_s(moments, after=healed_at)
        print(f"without {what} for {without_s:.2f} s")
        if without_s > WITHOUT_SERVICE_S_MAX:
            raise TooLateError(f"without {what} for {without_s:.2f} s after the way was open")
