"""`ringmq.connect`: from seeds to a client that has reached a node."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from types import TracebackType

from ringmq.calls.arguments import checked
from ringmq.calls.known_nodes import KnownNodes, parse_seeds
from ringmq.client import Client
from ringmq.errors import BadRequestError

DEADLINE_S = 30.0
#: A batch of the default largest message, with room for its frame.
RECEIVE_BYTES_MAX = 160 * 1024 * 1024


class connect:
    """A connection to the cluster: `async with connect(seeds) as client`, or `await connect(...)`.

    `seeds`: addresses of some nodes, as a list or separated by commas; the others are learned
    from them. `deadline_s`: for every call that is given none, and for each message from
    `publish` to its confirm. `receive_bytes_max`: the largest response that is accepted; it must
    be above the cluster's largest message. `vhost`: that of the queues and exchanges which the
    client names; "" is "/". It is looked for with the first call that names one.
    """

    @checked
    def __init__(
        self,
        seeds: str | Iterable[str],
        *,
        deadline_s: float = DEADLINE_S,
        receive_bytes_max: int = RECEIVE_BYTES_MAX,
        vhost: str = "",
    ) -> None:
        if deadline_s <= 0:
            raise BadRequestError(
                f"a deadline of {deadline_s:g} s has passed at once: give more than 0",
                metadata={"field": "deadline_s"},
            )
        if not 1 <= receive_bytes_max < 2**31:
            raise BadRequestError(
                f"receive_bytes_max is {receive_bytes_max}: give 1 to 2147483647",
                metadata={"field": "receive_bytes_max"},
            )
        self._seeds = parse_seeds(seeds)
        self._deadline_s = deadline_s
        self._receive_bytes_max = receive_bytes_max
        self._vhost = vhost
        # The clients that were entered and not left: one, unless it is entered again inside.
        self._entered: list[Client] = []

    async def _connect(self) -> Client:
        nodes = KnownNodes(
            self._seeds,
            deadline_s=self._deadline_s,
            receive_bytes_max=self._receive_bytes_max,
            vhost=self._vhost,
        )
        client = Client(nodes)
        try:
            await client.cluster_status()
        except BaseException:
            await client.close()
            raise
        return client

    def __await__(self) -> Generator[object, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        client = await self._connect()
        self._entered.append(client)
        return client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._entered.pop().close()
