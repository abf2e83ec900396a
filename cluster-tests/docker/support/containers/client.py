"""A client of the cluster in a container of its own, which the test watches and may signal."""

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from containers.container import ClusterError, MemberContainer, Output, wait_until

Record = dict[str, Any]


class Client:
    """Made by `Cluster.client`. A context manager: it starts, and is gone in the end."""

    def __init__(self, container: MemberContainer) -> None:
        self._container = container

    def __enter__(self) -> Self:
        self._container.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._container.get_wrapped_container().remove(force=True, v=True)
        self._container.close()

    def signal(self, name: str) -> None:
        """Send it a signal, `SIGTERM` or so."""
        self._container.get_wrapped_container().kill(name)

    @property
    def has_exited(self) -> bool:
        raw = self._container.get_wrapped_container()
        raw.reload()
        return raw.status == "exited"

    def text(self) -> str:
        """All that it has printed so far, on both streams."""
        return self._container.get_wrapped_container().logs().decode(errors="replace")

    def wait(self, *, deadline_s: float) -> Output:
        """Return once it has exited; `ClusterError` if it hasn't within `deadline_s`."""
        try:
            wait_until(lambda: self.has_exited, "the client's end", deadline_s=deadline_s)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.text()}") from None
        return Output(self._container.wait(), self.text())

    # -- of a client that prints a JSON object on each line ----------------------------------------

    def record(self) -> Record:
        """The last that it has printed; empty before the first."""
        raw = self._container.get_wrapped_container().logs(stderr=False, tail=1)
        return _parse(raw.decode())

    def wait_record(
        self, what: str, wanted: Callable[[Record], bool], *, deadline_s: float
    ) -> Record:
        """Return the first that is `wanted`, of those that are seen from now on.

        `ClusterError` naming `what`, with all it has printed, if it ends before or takes too long.
        """
        found: Record = {}

        def has_come() -> bool:
            nonlocal found
            exited = self.has_exited
            found = self.record()
            if wanted(found):
                return True
            if exited:
                raise ClusterError(f"{what}: the client has ended")
            return False

        try:
            wait_until(has_come, what, deadline_s=deadline_s)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.text()}") from None
        return found

    def report(self, *, deadline_s: float) -> Record:
        """The last record of a client that ends well; `ClusterError` if it doesn't."""
        ended = self.wait(deadline_s=deadline_s)
        if ended.exit_code != 0:
            raise ClusterError(f"the client exited with {ended.exit_code}\n{ended.text}")
        return self.record()


def _parse(text: str) -> Record:
    line = text.strip()
    if not line:
        return {}
    record: Record = json.loads(line)
    return record
