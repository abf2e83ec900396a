"""One of three processes that talk in one order. Run it as `member.py anna`, `ben` and `carl`."""

import asyncio
import sys

import ringmq_gm as gm
from ringmq_gm.registry.base import Guard, Put
from ringmq_gm.registry.url import open_registry
from ringmq_wire import WireServer


class Chat:
    ring: gm.Ring

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        print("delivered", number, payload.decode(), flush=True)
        self.ring.persisted(number)  # A real one writes it to disk first.

    def watermarks(self, received: int, persisted: int) -> None:
        print("confirmed", persisted, flush=True)

    def role_changed(self, role: gm.Role, view: gm.View) -> None:
        print(role.value, view.epoch, flush=True)

    def contact_changed(self, has_contact: bool) -> None:
        print("in contact with the ring again" if has_contact else "out of contact with the ring")

    def start_catch_up(self, number: int, source: gm.MemberId) -> None:
        self.ring.caught_up(number)  # A chat needs no past.

    def loss_ended(self) -> None:
        print("the ring has answered an operator who accepted a loss")

    def ring_deleted(self) -> None:
        print("deleted", flush=True)

    def ring_failed(self, failure: gm.RingFailedError) -> None:
        print(failure, flush=True)


async def talk(name: str, registry_url: str) -> None:
    registry = open_registry(registry_url)
    server = WireServer()
    address = f"127.0.0.1:{server.bind('127.0.0.1:0')}"
    incarnation = await gm.next_incarnation(registry, name)
    group = gm.Group(registry, node=name, incarnation=incarnation, address=address)
    server.add(group.routes())
    server.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run())
        while len(group.nodes()) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ids = sorted(record.member_id for record in group.nodes().values())
        view = gm.first_view(ids, min_insync=2).encode()
        await registry.commit([Guard(gm.ring_key("chat"), 0)], [Put(gm.ring_key("chat"), view)])
        chat = Chat()
        ring = chat.ring = group.open("chat", chat, gm.LogEnd())
        while True:
            await asyncio.sleep(0.05)
            if ring.view is not None:
                ring.submit(f"hello from {name}".encode())  # By way of the master.


if __name__ == "__main__":
    asyncio.run(talk(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "sqlite:///tmp/chat.db"))
