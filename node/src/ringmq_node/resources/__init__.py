"""A node's memory and disk: how much it uses, and its measures when either becomes short.

`memory` and `disk` decide, without I/O or a clock; `limits` reads the operator's settings;
`cgroup` reads the kernel's files; `monitor` is the task that joins them. `loop_watch` looks after a
third resource, the time of the event loop. Nothing here imports
another room of the node but `model`: the store is known as a `PagingStore`, the node as a callback.
"""

from ringmq_node.resources.monitor import Alarm, PagingStore, ResourceMonitor, Usage

__all__ = ["Alarm", "PagingStore", "ResourceMonitor", "Usage"]
