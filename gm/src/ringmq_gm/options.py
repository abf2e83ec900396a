"""The settings of a group, with the bounds in their units."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringmq_gm.core.cache import CACHE_BYTES_MAX, JOINER_BYTES_MAX
from ringmq_gm.core.timing import Timing


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """All durations in seconds, all sizes in bytes."""

    # A node that was silent for this long (up to a quarter more, by jitter) is down.
    ring_timeout_s: float = 2.0
    # After a link broke: how long one quick redial may take before the node is down.
    redial_s: float = 0.2
    # How long a dial may take, from the connection to the answered handshake.
    dial_timeout_s: float = 2.0
    # The longest pause between two dials of a node that is down.
    dial_pause_s_max: float = 1.0
    # A node that takes less than a window of its frames in this time is too slow for the ring.
    slow_timeout_s: float = 10.0
    # A link to a node with which no ring is shared is closed after this.
    link_idle_s: float = 30.0
    # The registry lease of this node.
    lease_ttl_s: float = 5.0
    # Bytes on the way to a node that it has not credited yet.
    window_bytes: int = 8 * 1024 * 1024
    # Frames are gathered into messages of about this size; a larger frame travels in parts of it.
    # Large bodies may have `LARGE_BYTES_MORE` more, as far as the kernel takes that at once.
    # Two of these, and what frames them, are less than 64 KiB: see `links/outgoing.py`.
    message_bytes: int = 31 * 1024
    # The largest op. The same on all nodes: else one may send an op that another refuses.
    payload_bytes_max: int = 256 * 1024 * 1024
    # Per ring: ops that are not yet with every synchronised member. Beyond it multicast is refused.
    cache_bytes_max: int = CACHE_BYTES_MAX
    # Per ring: ops that only joiners lack. Beyond it these are put out of the ring.
    joiner_bytes_max: int = JOINER_BYTES_MAX
    # Per ring: payloads that wait to be handed to the master by `Ring.submit`.
    submit_bytes_max: int = 8 * 1024 * 1024
    # Goes with each call to another node, for those who guard its port.
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    timing: Timing = field(default_factory=Timing)

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that is taken: a payload, the ring's name, and 64 Ki of marks."""
        return self.payload_bytes_max + 2 * 1024 * 1024

    @property
    def unacknowledged_s(self) -> float:
        """A connection is given up once nothing was acknowledged for so long; see `links.link`."""
        return self.ring_timeout_s / 2

    @property
    def heartbeat_s(self) -> float:
        """Silence on a link is never longer than this, while its process runs."""
        return self.ring_timeout_s / 4
