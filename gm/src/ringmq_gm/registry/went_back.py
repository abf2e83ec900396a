"""A registry that has shown another history: the process takes nothing of it any more, for good.

Its revisions rise again, with other contents: they are as high as before after some time.
"""

from __future__ import annotations

import logging

from ringmq_gm.registry.base import RegistryWentBackError

log = logging.getLogger(__name__)


class WentBack:
    """`name` is that of the registry, for errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._how: str | None = None

    def check_usable(self) -> None:
        """Raises `RegistryWentBackError` if that has been seen."""
        if self._how is not None:
            raise RegistryWentBackError(self._how)

    def fail(self, how: str) -> None:
        """It went back `how`: raises `RegistryWentBackError`, and says so in the log once."""
        if self._how is None:
            self._how = (
                f"{self._name}: the registry went back {how}: it was restored from a backup. This "
                "process takes nothing of it any more"
            )
            log.error(
                "%s: queues go on where they are, and no failover or change of a queue is"
                " possible. See 'The registry was restored' in the operations manual",
                self._how,
            )
        raise RegistryWentBackError(self._how)
